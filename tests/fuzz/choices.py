"""Hostile documents out of a fuzzer's bytes: each choice takes one, so that coverage can guide them.

Building them by a property-testing library's strategies costs a hundred times as much per document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

NASTY_TEXTS = (
    *("", " ", "\0", "\n", "\u2028", "\ufeff", "\ud800", "é" * 300, "../../etc/passwd", "9" * 5000),
    *("{prompt.__class__.__init__.__globals__}", "{{ ''.__class__.__mro__ }}", "%n%s%d", "1e999", "NaN"),
    *("http://[", "data:,x", "true", "null", "-1", "\U0001f600", "a" * 70),
)
NASTY_NUMBERS = (
    *(0, 1, 2, 5, 64, -1, 1 << 31, 1 << 32, 1 << 63, 1 << 64, -(1 << 70), 10**400),
    *(0.5, -0.5, 1e308, 1e-320, float("nan"), float("inf")),
)
_DEEPEST = 4


class Choices:
    """Draws from ``data``; from where it ends, always the first possibility."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, most: int) -> int:
        value = self.byte()
        return (value << 8 | self.byte()) % most if most > 256 else value % most

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], most: int = 6) -> list[T]:
        return [self.of(items) for _ in range(self.below(most + 1))]

    def rest(self) -> bytes:
        rest, self._data = self._data[self._at :], b""
        return rest

    def bytes(self, most: int) -> bytes:
        size = self.below(most + 1)
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.bytes(12).decode("utf-8", "surrogateescape") if self.flag() else self.of(NASTY_TEXTS)

    def value(self, words: Sequence[object] = (), keys: Sequence[str] = (), depth: int = 0) -> object:
        """Anything that JSON can say; ``words`` are likely values, ``keys`` likely names."""
        kind = self.below(8)
        if words and kind < 3:
            return self.of(words)
        if depth < _DEEPEST and kind == 6:
            return [self.value(words, keys, depth + 1) for _ in range(self.below(4))]
        if depth < _DEEPEST and kind == 7:
            return self.object(keys, words, depth + 1)
        return self.of((None, True, False, self.of(NASTY_NUMBERS), self.text(), self.byte()))

    def object(self, keys: Sequence[str], words: Sequence[object] = (), depth: int = 0) -> dict[str, object]:
        count = self.below(7)
        return {self._name(keys): self.value(words, keys, depth) for _ in range(count)}

    def _name(self, keys: Sequence[str]) -> str:
        return self.of(keys) if keys and self.below(8) else self.text()

    def damaged(self, document: bytes) -> bytes:
        """``document``, often with a cut, a doubling or other bytes in one place."""
        if self.below(4):
            return document
        start = self.below(len(document) + 1)
        end = min(len(document), start + self.below(64))
        return document[:start] + self.bytes(16) + document[end:]


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()
