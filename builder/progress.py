"""Progress as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable

from builder.sizes.words import in_words
from engine.progress import Progress

INTERVAL_S = 5.0


def progress_lines(report: Callable[[str], None]) -> Progress:
    """Report a line every few seconds: ``packing: 1.2 GiB of 4.0 GiB (30 %)``."""
    last_s = time.monotonic()

    def progress(done_bytes: int, total_bytes: int | None, what: str) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= INTERVAL_S:
            last_s = time.monotonic()
            text = f"{what}: {in_words(done_bytes)}"
            if total_bytes:
                text += f" of {in_words(total_bytes)} ({100 * done_bytes // total_bytes} %)"
            report(text)

    return progress
