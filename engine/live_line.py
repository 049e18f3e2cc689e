"""One line on a terminal that shows what is waited for, and for how long; elsewhere a plain line at times.

Standard library only, and Python 3.8 can run it: the set-up uses it before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

BOLD, RED = "1", "31"
_REDRAW_S = 0.5
_PLAIN_EVERY_S = 10.0
_ERASE = "\r\033[K"


class LiveLine:
    """Line on a terminal, used as a context: ``show`` the current phase; ``say`` a line that stays."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._text: str | Callable[[], str] = ""
        self._began_s = self._told_s = time.monotonic()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="live-line", daemon=True)

    def __enter__(self) -> LiveLine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        with self._lock:
            self._erase()
            self._text = ""

    def show(self, text: str | Callable[[], str], *, is_new: bool = True) -> None:
        """Replace the line. Each redraw calls ``text`` if it is a function. ``is_new``: a phase begins."""
        with self._lock:
            if is_new and text != self._text:
                self._began_s = self._told_s = time.monotonic()
            self._text = text

    def say(self, line: str) -> None:
        """Print ``line`` to stdout, above the live line."""
        with self._lock:
            self._erase()
            print(line, flush=True)
            self._draw()

    def _redraw(self) -> None:
        while not self._end.wait(_REDRAW_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        now_s = time.monotonic()
        if not self._text:
            return
        text = self._text if isinstance(self._text, str) else self._text()
        line = f"{text}  {elapsed(now_s - self._began_s)}"
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"{_ERASE}{line if len(line) <= width else line[: width - 3] + '...'}")
        elif now_s - self._told_s >= _PLAIN_EVERY_S:
            self._told_s = now_s
            self._write(f"{line}\n")

    def _erase(self) -> None:
        if self._is_live and self._text:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return ``text`` in an ANSI style if ``stream`` is a terminal and NO_COLOR is not set."""
    wants_colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[{style}m{text}\033[0m" if wants_colour else text
