"""API keys: the setting, and whether a client has one of them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Annotated

from pydantic import BeforeValidator

_SCHEME = b"bearer"


def _keys(value: object) -> object:
    if not isinstance(value, str):
        return value
    keys = tuple(map(str.strip, value.split(",")))
    if not all(keys):
        raise ValueError("one or more comma-separated keys, none of them blank")
    return keys


KeyTexts = Annotated[tuple[str, ...], BeforeValidator(_keys)]
"""A blank key is refused: it could be a secret that is missing, and would leave the server open."""


class APIKeys:
    """The keys of a server. Without keys every client is accepted."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def accept(self, authorization: bytes) -> bool:
        """Whether the header ``authorization`` (empty if there is none) is ``Bearer`` and one of the keys."""
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        # Each comparison takes constant time, and all are made: the time reveals nothing about the keys.
        matches = [hmac.compare_digest(given, each) for each in self._keys]
        return not matches or (scheme.lower() == _SCHEME and any(matches))
