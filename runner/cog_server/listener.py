"""Finds the socket on which coglet listens: coglet does not hand it out, but it is a file of this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def find_listener(port: int) -> tuple[socket.socket, Callable[[], bool]] | None:
    """A descriptor of our own for the socket that listens on ``port``, and whether coglet still listens."""
    for path in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # Another thread may close it meanwhile.
            if (place := path.readlink()).name.startswith("socket:"):
                candidate = socket.socket(fileno=os.dup(int(path.name)))
                if _listens(candidate, port):
                    return candidate, partial(_is_at, path, place)
                candidate.close()
    return None


def _is_at(path: Path, place: Path) -> bool:
    """Whether a descriptor still stands for that socket."""
    with suppress(OSError):
        return path.readlink() == place
    return False


def _listens(candidate: socket.socket, port: int) -> bool:
    return (
        candidate.family in (socket.AF_INET, socket.AF_INET6)
        and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and candidate.getsockname()[1] == port
    )
