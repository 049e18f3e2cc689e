"""API keys: the setting, the check of a client's key, and the priorities that a client may ask for."""

import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator

from errors.requests import InvalidInput

_SCHEME = b"bearer"
_NUMBER = re.compile(r"-?[0-9]{1,9}")


def _keys(value: object) -> object:
    if not isinstance(value, str):
        return value
    keys = tuple(map(str.strip, value.split(",")))
    if not all(keys):
        raise ValueError("one or more comma-separated keys, none of them blank")
    return keys


KeyTexts = Annotated[tuple[str, ...], BeforeValidator(_keys)]
"""Texts of keys. A blank one is refused: it could be a missing secret that leaves the server open."""


def _lowest_priorities(value: object) -> object:
    if not isinstance(value, str):
        return value
    lowest: dict[str, int] = {}
    for text in value.split(","):
        key, _, number = map(str.strip, text.rpartition("="))
        if not _NUMBER.fullmatch(number) or key in lowest:
            raise ValueError("a whole number, and KEY=NUMBER for keys of API_KEYS, with commas between them")
        lowest[key] = int(number)
    return lowest


LowestPriorities = Annotated[dict[str, int], BeforeValidator(_lowest_priorities)]
"""Lowest priority by API key; that of an empty key is for all others."""


def allowed_priority(lowest: Mapping[str, int], asked: int | None, key: str = "") -> int:
    """Return the priority of a request of a client with this key. Raises E1005 if it asks for a lower one."""
    least = lowest.get(key, lowest.get("", 0))
    if asked is not None and asked < least:
        raise InvalidInput(name="priority", expected=f"at least {least} (MIN_PRIORITY)", value=asked)
    return max(least, 0) if asked is None else asked


class APIKeys:
    """Keys of a server. Without keys every client is accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def accept(self, authorization: bytes) -> bool:
        """Return True if the header ``authorization`` (empty if there is none) is ``Bearer`` and a key."""
        return not self._keys or self.find(authorization) is not None

    def find(self, authorization: bytes) -> str | None:
        """Find the key in the header. Return None if the server does not have it."""
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        # Each comparison takes constant time, and all are made: the time reveals nothing about the keys.
        matches = [each.decode() for each in self._keys if hmac.compare_digest(given, each)]
        return matches[0] if matches and scheme.lower() == _SCHEME else None
