"""Variables that are on or off."""

from __future__ import annotations

import pytest

from engine.switch import is_on
from errors.settings import InvalidSetting


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("On", True), ("YES", True), ("0", False), ("off", False), ("No", False)]
)
@pytest.mark.parametrize("default", [True, False])
def test_what_is_set_wins_over_the_default(text: str, on: bool, default: bool) -> None:
    assert is_on("X", {"X": text}, default=default) is on


@pytest.mark.parametrize("default", [True, False])
def test_unset_and_empty_are_the_default(default: bool) -> None:
    assert is_on("X", {}, default=default) is is_on("X", {"X": ""}, default=default) is default


@pytest.mark.parametrize("text", ["of", "perhaps", " ", "2"])
def test_another_word_is_told_by_its_variable(text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"X must be true or false, but is {text!r}"):
        is_on("X", {"X": text}, default=True)
