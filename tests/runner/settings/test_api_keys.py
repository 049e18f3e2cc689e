"""API keys: a blank one is refused at start, and only `Bearer KEY` with a right one is accepted."""

import pytest

from errors.requests import InvalidInput
from errors.settings import InvalidSetting
from runner.settings.api_keys import APIKeys, allowed_priority
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


RIGHT = (b"Bearer one", b"bearer  two ", "Bearer schlüssel".encode())
WRONG = (
    *(b"", b"Bearer", b"Bearer ", b"Basic one", b"one", b"Bearer one,two", b"Bearer three"),
    b"Bearer \xff\xfe",
)


def test_a_client_needs_one_of_the_keys_where_there_are_any() -> None:
    keys = APIKeys(("one", "two", "schlüssel"))
    assert [keys.accept(authorization) for authorization in RIGHT] == [True] * len(RIGHT)
    assert [keys.accept(authorization) for authorization in WRONG] == [False] * len(WRONG)
    assert all(APIKeys(()).accept(authorization) for authorization in (b"", b"Bearer anything"))


def test_the_key_of_a_client_is_found() -> None:
    keys = APIKeys(("one", "schlüssel"))
    assert keys.find("Bearer schlüssel".encode()) == "schlüssel"
    assert keys.find(b"Bearer two") is None
    assert APIKeys(()).find(b"Bearer one") is None


@pytest.mark.parametrize(
    ("text", "lowest"),
    [("-5", {"": -5}), ("2, one=-3,two==0", {"": 2, "one": -3, "two=": 0}), ("one=1", {"one": 1})],
)
def test_lowest_priorities_are_read(text: str, lowest: dict[str, int]) -> None:
    assert load_settings({"API_KEYS": "one,two=", "MIN_PRIORITY": text}).min_priority == lowest


@pytest.mark.parametrize(
    "text", ["first", "1.5", "1,2", "secret=", "secret=high", "secret=1", "1,", "9" * 10]
)
def test_other_texts_and_unknown_keys_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"E1006 .*MIN_PRIORITY must be") as raised:
        load_settings({"API_KEYS": "one", "MIN_PRIORITY": text})
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(load_settings({"API_KEYS": "secret", "MIN_PRIORITY": "secret=1"}))


@pytest.mark.parametrize(
    ("asked", "key", "priority"),
    [(None, "", 0), (-1, "", -1), (None, "batch", 5), (9, "batch", 9), (-10, "vip", -10), (None, "vip", 0)],
)
def test_each_key_has_its_own_lowest_priority(asked: int | None, key: str, priority: int) -> None:
    lowest = {"": -1, "batch": 5, "vip": -10}
    assert allowed_priority(lowest, asked, key) == priority
    with pytest.raises(InvalidInput, match=r"E1005.*priority must be at least .* \(MIN_PRIORITY\)"):
        allowed_priority(lowest, lowest[key] - 1, key)
