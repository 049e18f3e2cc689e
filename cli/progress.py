"""Progress on stderr: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from builder.progress import progress_lines
from engine.progress import Progress


@contextmanager
def progress_on_stderr() -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield progress_lines(lambda line: print(line, file=sys.stderr, flush=True))
        return
    bar: tqdm[Any] | None = None

    def draw(done_bytes: int, total_bytes: int | None, what: str) -> None:
        nonlocal bar
        if bar is None or bar.desc != what:
            if bar is not None:
                bar.close()
            bar = tqdm(desc=what, unit="iB", unit_scale=True, unit_divisor=1024, leave=False)
        bar.total = total_bytes
        bar.update(done_bytes - bar.n)

    try:
        yield draw
    finally:
        if bar is not None:
            bar.close()
