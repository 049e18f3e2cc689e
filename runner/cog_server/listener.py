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
    for number, place in _sockets():
        with suppress(OSError):  # Another thread may close it meanwhile.
            candidate = socket.socket(fileno=os.dup(number))
            if _listens(candidate, port):
                return candidate, partial(_is_at, number, place)
            candidate.close()
    return None


def _sockets() -> list[tuple[int, str]]:
    """This process's sockets: descriptor, and which socket it is."""
    numbers = [int(path.name) for path in _DESCRIPTORS.iterdir()]
    return [(number, place) for number in numbers if (place := _place(number)).startswith("socket:")]


def _place(number: int) -> str:
    """What a descriptor stands for; blank once it is closed."""
    try:
        return str((_DESCRIPTORS / str(number)).readlink())
    except OSError:
        return ""


def _is_at(number: int, place: str) -> bool:
    return _place(number) == place


def _listens(candidate: socket.socket, port: int) -> bool:
    return (
        candidate.family in (socket.AF_INET, socket.AF_INET6)
        and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and candidate.getsockname()[1] == port
    )
