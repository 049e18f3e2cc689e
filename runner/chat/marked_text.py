"""A prompt of which some parts are plain text, though they look like control tokens."""

from __future__ import annotations

from collections.abc import Sequence


class MarkedText(str):
    """``plain``: the parts, as (start, end) in characters, in order, that must not become control tokens."""

    plain: Sequence[tuple[int, int]]

    def __new__(cls, text: str, plain: Sequence[tuple[int, int]]) -> MarkedText:
        made = super().__new__(cls, text)
        made.plain = plain
        return made
