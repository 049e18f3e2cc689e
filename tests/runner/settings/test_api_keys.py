"""API keys: a blank one is refused at start, and only `Bearer KEY` with a right one is accepted."""

from __future__ import annotations

import pytest

from errors.settings import InvalidSetting
from runner.settings.api_keys import APIKeys
from runner.settings.settings import load_settings


@pytest.mark.parametrize("name", ["API_KEYS", "OPENAI_API_KEYS"])
@pytest.mark.parametrize("text", [",", " ", "one,,two", "one,", " , ", "\t"])
def test_a_blank_key_is_refused_and_no_key_is_shown(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"E1006 .*{name} must be .*none of them blank") as raised:
        load_settings({name: text})
    assert "one" not in str(raised.value).replace("one or more", "").replace("none", "")


def test_the_old_name_sets_the_keys_too_but_not_both() -> None:
    assert load_settings({"OPENAI_API_KEYS": "one, two"}).api_keys == ("one", "two")
    with pytest.raises(InvalidSetting, match="OPENAI_API_KEYS must be left out where there is API_KEYS"):
        load_settings({"OPENAI_API_KEYS": "one", "API_KEYS": "one"})
    assert load_settings({"OPENAI_API_KEYS": "", "API_KEYS": "one"}).api_keys == ("one",)


@pytest.mark.parametrize(
    ("authorization", "is_accepted"),
    [
        (b"Bearer one", True),
        (b"bearer  two ", True),
        ("Bearer schlüssel".encode(), True),
        (b"", False),
        (b"Bearer", False),
        (b"Bearer ", False),
        (b"Basic one", False),
        (b"one", False),
        (b"Bearer one,two", False),
        (b"Bearer three", False),
        (b"Bearer \xff\xfe", False),
    ],
)
def test_a_client_needs_one_of_the_keys(authorization: bytes, is_accepted: bool) -> None:
    assert APIKeys(("one", "two", "schlüssel")).accept(authorization) is is_accepted


def test_without_keys_every_client_is_accepted() -> None:
    assert APIKeys(()).accept(b"")
    assert APIKeys(()).accept(b"Bearer anything")
