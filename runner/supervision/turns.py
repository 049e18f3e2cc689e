"""Turns of connections whose input is much work and little content: others go on meanwhile."""

import asyncio
import time
from collections import deque
from typing import Protocol

FIRST_READ_BYTES = 1 << 10
MAX_READ_BYTES = 1 << 14
_FEW = 16
"""Number of useless parts of one read that delay no other connection."""
_PART_S = 40e-6
"""Longest time for a useless part, such as a PING frame."""
_STEP_S = 0.004
"""Time to read the connections of a port in one step of the event loop; others wait for the next one."""
SMALL_BYTES = 64
"""Size below which a chunk takes more time than its content is worth."""
SMALL_PER_PART = 8
"""Number of small chunks, or lines of a head, that are as much work as a frame of HTTP/2."""


class Reader(Protocol):
    """The reading side of a connection, as asyncio's transports have it."""

    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Turns:
    """The turns of the connections of one port."""

    def __init__(self) -> None:
        self._penalized: deque[tuple[Reader, float]] = deque()
        """Connections with the time that the event loop has for others before they are read."""
        self._waiting: deque[Reader] = deque()
        """Connections that wait for the next step."""
        self._step_began_s: float | None = None

    def has_time(self) -> bool:
        """Tell whether another connection may be read in this step of the loop; else it has to ``wait``."""
        now_s = time.perf_counter()
        if self._step_began_s is None:
            self._step_began_s = now_s
            asyncio.get_running_loop().call_soon(self._end_step)
        return now_s - self._step_began_s < _STEP_S

    def after_read(self, reader: Reader, num_useless: int, read_bytes: int) -> int:
        """Return how much to read next. After many useless parts the connection waits for its turn."""
        if num_useless <= _FEW:
            return min(2 * read_bytes, MAX_READ_BYTES)
        self.wait(reader, num_useless)
        return FIRST_READ_BYTES

    def wait(self, reader: Reader, num_useless: int = 0) -> None:
        """Pause the connection until the next step, or after useless parts for longer."""
        if reader.is_closing():
            return
        reader.pause_reading()
        if num_useless:
            self._penalized.append((reader, num_useless * _PART_S))
            if len(self._penalized) == 1:
                self._wait()
        else:
            self._waiting.append(reader)
            if len(self._waiting) == 1:
                asyncio.get_running_loop().call_soon(self._resume_waiting)

    def _end_step(self) -> None:
        self._step_began_s = None

    def _resume_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        while waiting and self.has_time():
            if not (reader := waiting.popleft()).is_closing():
                reader.resume_reading()
        is_called = bool(self._waiting)  # Some wait again: they come last.
        self._waiting = deque([*waiting, *self._waiting])
        if waiting and not is_called:
            asyncio.get_running_loop().call_soon(self._resume_waiting)

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(self._penalized[0][1], self._resume_first)

    def _resume_first(self) -> None:
        reader, _ = self._penalized[0]
        if not reader.is_closing():
            reader.resume_reading()
        self._penalized.popleft()  # Only now: it may wait again at once.
        if self._penalized:
            self._wait()
