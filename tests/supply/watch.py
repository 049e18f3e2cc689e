"""Looks for planted secrets everywhere: texts, files, and the command lines of all processes meanwhile."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

_POLL_S = 0.005


class CommandLines:
    """The command lines of this machine's processes, and some environments, as seen from enter to exit."""

    def __init__(self, environments_of: str) -> None:
        """``environments_of``: words in the command line of processes whose variables are looked at, too."""
        self.seen: frozenset[str] = frozenset()
        self.environments: frozenset[str] = frozenset()
        self._words = environments_of
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch-processes", daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_POLL_S):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    line = _words(process / "cmdline")
                    self.seen = _with(self.seen, line)
                    if self._words in line:
                        self.environments = _with(self.environments, _words(process / "environ"))
                except OSError:
                    pass  # It has ended.


def _with(texts: frozenset[str], text: str) -> frozenset[str]:
    """Make a new set: another thread may be reading the old one."""
    return texts if text in texts else texts | {text}


def _words(path: Path) -> str:
    return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def texts_of(folder: Path) -> list[str]:
    """Return the content of every file below, whatever it is."""
    return [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]


def leaks(secrets: Iterable[str], texts: Iterable[str]) -> list[tuple[str, str]]:
    """Each secret that is in a text, in one of the forms it might have taken, with what stands around it."""
    texts = list(texts)
    found = []
    for secret in secrets:
        for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")):
            for text in texts:
                if (at := text.find(form)) >= 0:
                    found.append((form, text[max(at - 80, 0) : at + len(form) + 20]))
    return found
