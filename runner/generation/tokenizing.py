"""Tokenizes prompts of any length so that no other request waits, and memory stays bounded.

A short text is tokenized at once. A longer one is tokenized in a thread, and a long one in overlapping
windows there, one after the other: between them other requests have their turn, and a cancelled request ends.
Where two windows have the same tokens at the same places for a while, their tokens are joined, so that the
result is that of the whole text.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Encoding, Tokenizer

from errors.requests import PromptTooLong
from runner.chat.marked_text import MarkedText
from runner.generation.plain_text import PlainText
from runner.settings.prompt_template import byte_length

# NOTE: otherwise a single text is passed to a thread pool: two context switches, and nothing in parallel.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SHORT_CHARACTERS = 4096
"""Shorter texts take about a millisecond; longer ones are tokenized in a thread."""
_WINDOW_CHARACTERS = 1 << 15
"""Takes about 25 ms, and 5 MB of memory."""
_OVERLAP_CHARACTERS = 2048
_MARGIN_CHARACTERS = 256
"""At the ends of a window tokens may differ; beyond this, so many characters have to agree."""
_MOST_CHARACTERS = 1 << 18
"""A window without agreement grows to this. Then the text is cut there: no real text has such a stretch."""

# Each uses half of the processors, because streams are running.
_NUM_THREADS = max(1, (os.cpu_count() or 1) // 2)
_short_lane = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenize")
"""For texts of one window, so that they don't wait for long ones."""
_long_lane = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenize-long")


class Tokenizing:
    """Token ids of prompts for one model. Prompts of more than ``max_bytes`` are rejected before they are
    tokenized; tokenizing stops once a prompt has twice ``max_tokens``. ``control``: see ``PlainText``.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_bytes: int, max_tokens: int, control: frozenset[str] = frozenset()
    ) -> None:
        self.tokenizer = tokenizer
        self.max_bytes = max_bytes
        self._max_tokens = max_tokens
        self._plain_text = PlainText(tokenizer, control)

    def check_size(self, text: str) -> None:
        """Raises E1002 for a text of more than ``max_bytes``."""
        if (size_bytes := byte_length(text)) > self.max_bytes:
            raise PromptTooLong.in_bytes(prompt_bytes=size_bytes, max_bytes=self.max_bytes)

    def is_short(self, text: str) -> bool:
        return len(text) < _SHORT_CHARACTERS and not isinstance(text, MarkedText)

    def encode_short(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """Raises E1002."""
        self.check_size(text)
        # NOTE: this keeps the GIL. ``encode_batch_fast`` would compete for it with hundreds of threads.
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=adds_special_tokens).ids
        return ids

    async def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """Token ids of a text. Raises E1002, and E1704 for control tokens in a ``MarkedText``."""
        if self.is_short(text):
            return self.encode_short(text, adds_special_tokens=adds_special_tokens)
        self.check_size(text)
        loop = asyncio.get_running_loop()
        if len(text) <= _WINDOW_CHARACTERS and not isinstance(text, MarkedText):
            return await loop.run_in_executor(_short_lane, self._encode_window, text, adds_special_tokens)
        if isinstance(text, MarkedText):
            ids = await loop.run_in_executor(_long_lane, self._plain_text.encode, text)
        else:
            ids = await self._encode_windows(text)
        if adds_special_tokens:
            before, after = self._special_tokens
            ids = [*before, *ids, *after]
        return ids

    def _encode_window(self, text: str, adds_special_tokens: bool) -> list[int]:
        # "fast" skips the offsets of the tokens, which are not needed here, and lets other threads run.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=adds_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    @cached_property
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer adds before and after a text."""
        bare, full = (self.tokenizer.encode("a", add_special_tokens=adds).ids for adds in (False, True))
        at = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
        return full[:at], full[at + len(bare) :]

    async def _encode_windows(self, text: str) -> list[int]:
        loop = asyncio.get_running_loop()
        ids: list[int] = []
        window = await loop.run_in_executor(_long_lane, self._window, text, 0, _WINDOW_CHARACTERS)
        first = 0
        while window.end < len(text):
            taken, window, first = await loop.run_in_executor(_long_lane, self._advance, text, window, first)
            ids += taken
            if len(ids) > 2 * self._max_tokens:
                raise PromptTooLong(prompt_tokens=len(ids), max_input_tokens=self._max_tokens)
        ids += window.ids[first:]
        return ids

    def _window(self, text: str, start: int, end: int) -> _Window:
        end = min(end, len(text))
        (encoding,) = self.tokenizer.encode_batch([text[start:end]], add_special_tokens=False)
        return _Window(encoding, encoding.ids, start, end)

    def _advance(self, text: str, left: _Window, first: int) -> tuple[list[int], _Window, int]:
        """The tokens of ``left`` from its token ``first`` on, up to where the next window takes over; that
        window; and the number of its first token.
        """
        start = left.end - _OVERLAP_CHARACTERS
        right = self._window(text, start, start + _WINDOW_CHARACTERS)
        if (joint := _joint(left, right)) is not None:
            return left.ids[first : joint[0]], right, joint[1]
        if left.end - left.start < _MOST_CHARACTERS:
            return [], self._window(text, left.start, 2 * left.end - left.start), first
        right = self._window(text, left.end, left.end + _WINDOW_CHARACTERS)
        return left.ids[first:], right, 0


@dataclass(frozen=True)
class _Window:
    """The tokens of the characters from ``start`` to ``end`` of a text."""

    encoding: Encoding
    ids: list[int]
    start: int
    end: int

    def token_starts(self, begin: int, end: int) -> dict[int, int]:
        """Where tokens start, between two characters of the text, and the first token that starts there."""
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
    """The tokens of both at a character from which they agree for a while, in the middle of the overlap."""
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
