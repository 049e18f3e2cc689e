"""Progress on stderr: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from builder.sizes.words import in_words

_PLAIN_INTERVAL_S = 5.0


class ProgressPrinter:
    """An ``engine.progress.Progress`` that writes to stderr. Use as a context manager."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bar: tqdm[Any] | None = None
        self._what = ""
        self._printed_s = 0.0

    def __enter__(self) -> ProgressPrinter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __call__(self, done_bytes: int, total_bytes: int | None, what: str) -> None:
        if what != self._what:
            self._end()
            self._what = what
            self._printed_s = time.monotonic()
        if self._is_terminal:
            self._draw(done_bytes, total_bytes)
        elif time.monotonic() - self._printed_s >= _PLAIN_INTERVAL_S:
            self._printed_s = time.monotonic()
            print(f"{what}: {plain(done_bytes, total_bytes)}", file=sys.stderr, flush=True)

    def _draw(self, done_bytes: int, total_bytes: int | None) -> None:
        bar = self._bar
        if bar is None:
            bar = tqdm(
                total=total_bytes, desc=self._what, unit="B", unit_scale=True, unit_divisor=1024, leave=False
            )
            self._bar = bar
        bar.total = total_bytes
        bar.update(done_bytes - bar.n)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def plain(done_bytes: int, total_bytes: int | None) -> str:
    """``1.2 GiB of 4.0 GiB (30 %)``."""
    if not total_bytes:
        return in_words(done_bytes)
    return f"{in_words(done_bytes)} of {in_words(total_bytes)} ({100 * done_bytes // total_bytes} %)"
