"""Variables that are on or off."""

import pytest

from engine.switch import is_on
from errors.settings import InvalidSetting


@pytest.mark.parametrize("default", [True, False])
def test_what_is_set_wins_over_the_default_and_another_word_is_told_by_its_variable(default: bool) -> None:
    for text, on in {"1": True, "On": True, "YES": True, "0": False, "off": False, "No": False}.items():
        assert is_on("X", {"X": text}, default=default) is on
    assert is_on("X", {}, default=default) is is_on("X", {"X": ""}, default=default) is default
    for text in ("of", "perhaps", " ", "2"):
        with pytest.raises(InvalidSetting, match=f"X must be true or false, but is {text!r}"):
            is_on("X", {"X": text}, default=default)
