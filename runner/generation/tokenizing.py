"""Tokenization of prompts of any length: no other request waits for it, and memory stays bounded.

A text with few new characters is tokenized at once: pieces of earlier texts are known (``pieces``). A longer
one is tokenized in a thread, a long one in steps there: between them other requests have their turn, and a
cancelled request ends. A step has pieces or, where the tokenizer has none, an overlapping window.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain
from typing import TypeVar

from tokenizers import Tokenizer

from errors.requests import PromptTooLong
from runner.chat.control_tokens import MarkedText
from runner.generation.pieces import Pieces
from runner.generation.plain_text import PlainText, Section
from runner.generation.windows import WINDOW_CHARACTERS, Windows
from runner.settings.prompt_template import byte_length

# NOTE: otherwise a single text is passed to a thread pool: two context switches, and nothing in parallel.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SHORT_CHARACTERS = 4096
"""Shorter texts take about a millisecond; longer ones are tokenized in a thread."""
_KEPT_CHARACTERS = 1024
"""Texts below this have no pieces that are worth to keep."""
_LOOKED_UP_CHARACTERS = 1 << 18
"""Longer texts are looked up step by step."""
_SECTION_CHARACTERS = 16
"""Cost of a section of a ``MarkedText`` besides its text."""

# Each uses half of the processors, because streams are running.
_NUM_THREADS = max(1, (os.cpu_count() or 1) // 2)
_short_lane = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenize")
"""Threads for texts of one window, so that they don't wait for long ones."""
_long_lane = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenize-long")


T = TypeVar("T")


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
        self._pieces = Pieces(tokenizer)

    def check_size(self, text: str) -> None:
        """Raise E1002 for a text of more than ``max_bytes``."""
        if (size_bytes := byte_length(text)) > self.max_bytes:
            raise PromptTooLong.in_bytes(prompt_bytes=size_bytes, max_bytes=self.max_bytes)

    def is_short(self, text: str) -> bool:
        return len(text) < _SHORT_CHARACTERS and not isinstance(text, MarkedText)

    def encode_short(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """Tokenize a short text. Raises E1002."""
        self.check_size(text)
        # NOTE: this keeps the GIL. ``encode_batch_fast`` would compete for it with hundreds of threads.
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=adds_special_tokens).ids
        return ids

    def encode_now(self, text: str, *, adds_special_tokens: bool) -> list[int] | None:
        """Tokenize a text with few new characters; None for another. Raises E1002."""
        is_kept = len(text) >= _KEPT_CHARACTERS and self._pieces.is_supported
        if self.is_short(text) and not is_kept:
            return self.encode_short(text, adds_special_tokens=adds_special_tokens)
        if isinstance(text, MarkedText) or len(text) > _LOOKED_UP_CHARACTERS:
            return None
        self.check_size(text)
        pieces = list(self._pieces.of(text))
        found, new = self._find(pieces)
        if sum(map(len, new)) >= _SHORT_CHARACTERS:
            return None
        encode = self.tokenizer.encode  # See ``encode_short``.
        self._keep(found, new, [encode(piece, add_special_tokens=False).ids for piece in new])
        ids = [*chain.from_iterable(found[piece] for piece in pieces)]
        return self._with_special_tokens(ids) if adds_special_tokens else ids

    async def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """Tokenize a text. Raises E1002, and E1704 for control tokens in a ``MarkedText``."""
        if (known := self.encode_now(text, adds_special_tokens=adds_special_tokens)) is not None:
            return known
        return await self.encode_later(text, adds_special_tokens=adds_special_tokens)

    async def encode_later(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        """Tokenize a text for which ``encode_now`` has given None."""
        self.check_size(text)
        is_window = len(text) <= WINDOW_CHARACTERS
        lane = _short_lane if is_window else _long_lane
        if not isinstance(text, MarkedText):
            ids = await self._encode_pieces(text, lane)
        elif is_window:
            ids = await asyncio.get_running_loop().run_in_executor(lane, self._plain_text.encode, text)
        else:
            ids = await self._encode_marked(text)
        return self._with_special_tokens(ids) if adds_special_tokens else ids

    async def _encode_pieces(self, text: str, lane: ThreadPoolExecutor) -> list[int]:
        run = partial(asyncio.get_running_loop().run_in_executor, lane)
        ids: list[int] = []
        pieces = self._pieces.of(text)
        while batch := _next_batch(pieces, len):
            long = batch.pop() if len(batch[-1]) > WINDOW_CHARACTERS else None
            found, new = self._find(batch)
            if new:
                self._keep(found, new, await run(self._encode_each, new))
            ids += chain.from_iterable(found[piece] for piece in batch)
            if long is not None:
                ids += await self._encode_windows(long, self.tokenizer)
            self._check_count(ids)
        return ids

    def _find(self, pieces: list[str]) -> tuple[dict[str, Sequence[int]], list[str]]:
        """Return the token ids of known pieces, and the pieces that are new."""
        known = {piece: self._pieces.find(piece) for piece in pieces}
        found: dict[str, Sequence[int]] = {piece: ids for piece, ids in known.items() if ids is not None}
        return found, [piece for piece in known if piece not in found]

    def _keep(self, found: dict[str, Sequence[int]], new: list[str], ids: list[list[int]]) -> None:
        for piece, of_piece in zip(new, ids, strict=True):
            found[piece] = of_piece
            self._pieces.keep(piece, of_piece)

    def _encode_each(self, texts: list[str]) -> list[list[int]]:
        # "fast" skips the offsets of the tokens, which are not needed here, and lets other threads run.
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _with_special_tokens(self, ids: list[int]) -> list[int]:
        before, after = self._special_tokens
        return [*before, *ids, *after]

    @cached_property
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """Special tokens that the tokenizer adds before and after a text."""
        bare, full = (self.tokenizer.encode("a", add_special_tokens=adds).ids for adds in (False, True))
        at = next((at for at in range(len(full)) if full[at : at + len(bare)] == bare), 0)
        return full[:at], full[at + len(bare) :]

    async def _encode_marked(self, text: MarkedText) -> list[int]:
        """Tokenize a text with control tokens. Raises E1704."""
        run = partial(asyncio.get_running_loop().run_in_executor, _long_lane)
        plain = self._plain_text
        await run(plain.check, text)
        ids: list[int] = []
        sections = plain.sections(text)
        while batch := await run(_next_batch, sections, _section_size):
            long = batch.pop() if len(batch[-1].text) > WINDOW_CHARACTERS else None
            ids += await run(plain.encode_sections, batch)
            if long is not None:
                of_long = await self._encode_windows(long.text, long.tokenizer)
                if not plain.is_plain(of_long):
                    words = [await run(plain.encode_words, piece) for piece in plain.pieces(long)]
                    of_long = [*chain.from_iterable(words)]
                ids += of_long if long.after is None else [*of_long, long.after]
            self._check_count(ids)
        return ids

    async def _encode_windows(self, text: str, tokenizer: Tokenizer) -> list[int]:
        loop = asyncio.get_running_loop()
        ids: list[int] = []
        windows = Windows(text, tokenizer)
        window = await loop.run_in_executor(_long_lane, windows.make, 0, WINDOW_CHARACTERS)
        first = 0
        while window.end < len(text):
            taken, window, first = await loop.run_in_executor(_long_lane, windows.advance, window, first)
            ids += taken
            self._check_count(ids)
        ids += window.ids[first:]
        return ids

    def _check_count(self, ids: list[int]) -> None:
        if len(ids) > 2 * self._max_tokens:
            raise PromptTooLong(prompt_tokens=len(ids), max_input_tokens=self._max_tokens)


def _section_size(section: Section) -> int:
    return len(section.text) + _SECTION_CHARACTERS


def _next_batch(parts: Iterator[T], size: Callable[[T], int]) -> list[T]:
    """Return about as many pieces as one window has; the last one may be longer."""
    batch: list[T] = []
    room = WINDOW_CHARACTERS
    while room > 0 and (part := next(parts, None)) is not None:
        batch.append(part)
        room -= size(part)
    return batch
