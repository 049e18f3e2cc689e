"""Progress as lines of text."""

import time
from collections.abc import Callable

from engine.progress import Progress
from engine.words import duration_in_words, in_words

INTERVAL_S = 5.0
_SPEED_S = 1.0
"""Shortest time of a speed that says something."""


class ProgressText:
    """Text of a progress: ``downloading: 1.2 GiB of 4.0 GiB (30 %), 112 MiB/s, 25 s left``."""

    def __init__(self) -> None:
        self.what = ""
        self._began_s = 0.0
        self._began_bytes = 0

    def text(self, done_bytes: int, total_bytes: int | None, what: str) -> str:
        now_s = time.monotonic()
        if what != self.what:
            self.what, self._began_s, self._began_bytes = what, now_s, done_bytes
        if not done_bytes and not total_bytes:
            return what
        text = f"{what}: {in_words(done_bytes)}"
        if total_bytes:
            text += f" of {in_words(total_bytes)} ({100 * done_bytes // total_bytes} %)"
        passed_s, new_bytes = now_s - self._began_s, done_bytes - self._began_bytes
        if passed_s >= _SPEED_S and new_bytes > 0:
            speed = new_bytes / passed_s
            text += f", {in_words(speed)}/s"
            if total_bytes and total_bytes > done_bytes:
                text += f", {duration_in_words((total_bytes - done_bytes) / speed)} left"
        return text


def progress_lines(report: Callable[[str], None]) -> Progress:
    """Return a progress that reports a line every few seconds."""
    last_s, progress_text = time.monotonic(), ProgressText()

    def progress(done_bytes: int, total_bytes: int | None, what: str) -> None:
        nonlocal last_s
        text = progress_text.text(done_bytes, total_bytes, what)
        if time.monotonic() - last_s >= INTERVAL_S:
            last_s = time.monotonic()
            report(text)

    return progress
