"""Environment variables that are on or off."""

import os
from collections.abc import Mapping

from errors.settings import InvalidSetting

_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def is_on(variable: str, environment: Mapping[str, str] | None = None, *, default: bool) -> bool:
    """Return True if it is on; ``default`` if it is unset or empty. Raises E1006 for other values."""
    text = (os.environ if environment is None else environment).get(variable) or str(default)
    if text.lower() not in _WORDS:
        raise InvalidSetting(name=variable, expected="true or false", value=text)
    return _WORDS[text.lower()]
