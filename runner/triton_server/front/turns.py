"""Connections whose input is much work and little content are read in turn: others go on meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque

FIRST_READ_BYTES = 1 << 10
MAX_READ_BYTES = 1 << 14
_FEW = 16
"""Useless parts of one read that delay no other connection."""
_PART_S = 40e-6
"""What a useless part, a PING frame say, takes at most."""


class Turns:
    """Of the connections of one port."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Transport, float]] = deque()

    def after_read(self, transport: asyncio.Transport, num_useless: int, read_bytes: int) -> int:
        """How much to read next. After many useless parts the connection waits for its turn."""
        if num_useless <= _FEW:
            return min(2 * read_bytes, MAX_READ_BYTES)
        if not transport.is_closing():
            transport.pause_reading()
            self._waiting.append((transport, num_useless * _PART_S))
            if len(self._waiting) == 1:
                self._wait()
        return FIRST_READ_BYTES

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(self._waiting[0][1], self._resume_first)

    def _resume_first(self) -> None:
        transport, _ = self._waiting.popleft()
        if not transport.is_closing():
            transport.resume_reading()
        if self._waiting:
            self._wait()
