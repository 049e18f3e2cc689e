"""Tell what a command is waiting for: in a live line on a terminal, otherwise in a line from time to time."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from builder.progress import ProgressText, progress_lines
from engine.live_line import LiveLine
from engine.progress import Progress
from runner.cog_server.launch import CogServer

_MODEL = "model: "
"""Beginning of the runner's log lines about a model's download."""
_PHASES = {
    "engine: ": "loading the engine",
    "engine_server: INFO cog_triton.engine: engine ready": "loading Triton's models",
    "test prediction": "generating a first text",
}
"""Phases of a start, by the beginning of the log line that announces each."""


@contextmanager
def told_progress() -> Iterator[tuple[Callable[[str], None], Progress]]:
    """Provide a function that prints a line to stdout, and one that shows progress on stderr."""
    if not sys.stderr.isatty():
        told = progress_lines(partial(print, file=sys.stderr, flush=True))
        yield partial(print, flush=True), told
        return
    words = ProgressText()
    with LiveLine() as line:

        def report(text: str) -> None:
            line.say(text)
            line.show(text)

        def draw(done_bytes: int, total_bytes: int | None, what: str) -> None:
            is_new = what != words.what
            line.show(words.text(done_bytes, total_bytes, what), is_new=is_new)

        yield report, draw


def wait_ready(server: CogServer, timeout_s: float) -> None:
    """Wait for a runner's Cog server, and show what it does."""
    phases = _Phases(server.log_path)
    with LiveLine() as line:

        def show() -> str:
            text = phases.current()
            line.show(text, is_new=phases.is_new)
            return text

        server.wait_ready(timeout_s, show)


@contextmanager
def told_end(server: CogServer) -> Iterator[None]:
    """End the server with the block, and tell the user to wait for it."""
    try:
        yield
    finally:
        with LiveLine() as line:
            line.show("stopping, after running requests; Ctrl-C again ends them")
            server.stop()


class _Phases:
    """The phase that a starting runner has reached, by its log."""

    def __init__(self, log_path: Path) -> None:
        self._path = log_path
        self._offset = 0
        self._phase = self._text = "starting Cog"
        self.is_new = True

    def current(self) -> str:
        before = self._phase
        with self._path.open("rb") as log:
            log.seek(self._offset)
            lines = log.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._offset += len(line)
                self._read(line)
        self.is_new = self._phase != before
        return self._text

    def _read(self, line: bytes) -> None:
        try:
            message = str(json.loads(line)["fields"]["message"])
        except (ValueError, KeyError, TypeError):
            return
        if message.startswith(_MODEL):
            self._phase = "model"
            self._text = message.removeprefix(_MODEL)
            return
        phase = next((phase for begin, phase in _PHASES.items() if message.startswith(begin)), None)
        if phase is not None:
            self._phase = self._text = phase
