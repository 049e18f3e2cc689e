"""Overlapping windows of a long text, joined where they agree, so that the tokens are the whole text's."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from tokenizers import Encoding, Tokenizer

WINDOW_CHARACTERS = 1 << 15
"""Length of a window, which takes about 25 ms and 5 MB of memory."""
_OVERLAP_CHARACTERS = 2048
_MARGIN_CHARACTERS = 256
"""Margin at a window's ends, where tokens may differ. Between these margins, the tokens of two windows
have to agree over at least this length."""
_MOST_CHARACTERS = 1 << 18
"""Limit to which a window without agreement grows. The text is cut there: no real text is like that."""


@dataclass(frozen=True)
class Windows:
    """Windows of a text without the special tokens around it."""

    text: str
    tokenizer: Tokenizer

    def make(self, start: int, end: int) -> "_Window":
        end = min(end, len(self.text))
        (encoding,) = self.tokenizer.encode_batch([self.text[start:end]], add_special_tokens=False)
        return _Window(encoding, encoding.ids, start, end)

    def advance(self, left: "_Window", first: int) -> "tuple[list[int], _Window, int]":
        """Return the tokens of ``left`` from its token ``first`` on, up to where the next window begins; that
        window; and the number of its first token.
        """
        start = left.end - _OVERLAP_CHARACTERS
        right = self.make(start, start + WINDOW_CHARACTERS)
        if (joint := _joint(left, right)) is not None:
            return left.ids[first : joint[0]], right, joint[1]
        if left.end - left.start < _MOST_CHARACTERS:
            return [], self.make(left.start, 2 * left.end - left.start), first
        right = self.make(left.end, left.end + WINDOW_CHARACTERS)
        return left.ids[first:], right, 0


@dataclass(frozen=True)
class _Window:
    """The tokens of the characters from ``start`` to ``end`` of a text."""

    encoding: Encoding
    ids: list[int]
    start: int
    end: int

    def token_starts(self, begin: int, end: int) -> dict[int, int]:
        """Return the starts of tokens between two characters of the text, each with the first token there."""
        starts: dict[int, int] = {}
        length = len(self.ids)
        number = bisect_left(range(length), begin, key=self._start_of)
        while number < length and (at := self._start_of(number)) <= end:
            starts.setdefault(at, number)
            number += 1
        return starts

    def _start_of(self, number: int) -> int:
        place: Any = self.encoding.token_to_chars(number)
        return self.start + int(place[0])


def _joint(left: _Window, right: _Window) -> tuple[int, int] | None:
    """Find the tokens of both at a character from which they agree for a while, amid the overlap."""
    begin, end = right.start + _MARGIN_CHARACTERS, left.end - _MARGIN_CHARACTERS
    lefts, rights = left.token_starts(begin, end), right.token_starts(begin, end)
    common = [at for at in lefts if at in rights]
    if not common or common[-1] - common[0] < _MARGIN_CHARACTERS:
        return None
    left_first, left_last = lefts[common[0]], lefts[common[-1]]
    right_first, right_last = rights[common[0]], rights[common[-1]]
    if left.ids[left_first:left_last] != right.ids[right_first:right_last]:
        return None
    return left_first, right_first
