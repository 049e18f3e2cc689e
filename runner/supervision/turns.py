"""Connections whose input is much work and little content are read in turn: others go on meanwhile."""

import asyncio
from collections import deque
from typing import Protocol

FIRST_READ_BYTES = 1 << 10
MAX_READ_BYTES = 1 << 14
_FEW = 16
"""Useless parts of one read that delay no other connection."""
_PART_S = 40e-6
"""What a useless part, a PING frame say, takes at most."""
SMALL_BYTES = 64
"""A chunk of less takes more time than its content is worth."""
SMALL_PER_PART = 8
"""So many small chunks, or lines of a head, are as much work as a frame of HTTP/2."""


class Reader(Protocol):
    """Of a connection, as asyncio's transports."""

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Turns:
    """Of the connections of one port."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Reader, float]] = deque()

    def after_read(self, reader: Reader, num_useless: int, read_bytes: int) -> int:
        """How much to read next. After many useless parts the connection waits for its turn."""
        if num_useless <= _FEW:
            return min(2 * read_bytes, MAX_READ_BYTES)
        self.wait(reader, num_useless)
        return FIRST_READ_BYTES

    def wait(self, reader: Reader, num_useless: int) -> None:
        if not reader.is_closing():
            reader.pause_reading()
            self._waiting.append((reader, num_useless * _PART_S))
            if len(self._waiting) == 1:
                self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(self._waiting[0][1], self._resume_first)

    def _resume_first(self) -> None:
        reader, _ = self._waiting[0]
        if not reader.is_closing():
            reader.resume_reading()
        self._waiting.popleft()  # Only now: it may wait again at once.
        if self._waiting:
            self._wait()
