"""Copy files from any reader to any writer and hash them, reading, hashing and writing at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future

from engine.tar.file_writer import SMALL_BYTES, Digests, FileWriter, Write
from engine.tar.window import Buffer, Window

ReadInto = Callable[[memoryview], int]


class HashingCopier(FileWriter):
    """For one thread alone, and no more after an error. Await digests before leaving its ``with`` block."""

    def __init__(self) -> None:
        super().__init__(lambda name, content: None)
        self._current = _Current()
        self._window = Window(self._current)

    def copy_file(self, readinto: ReadInto, write: Write, size_bytes: int) -> Digests:
        """Copy ``size_bytes`` from ``readinto`` to ``write``; the digest (hex) is computed meanwhile.

        ``write`` takes all it is given, maybe on another thread, and has done so when this returns or raises.
        EOFError if ``readinto`` ends early.
        """
        self._current.start(readinto, size_bytes)
        if size_bytes > SMALL_BYTES:
            return self.copy(self._next_chunk, write)
        content = self._window.take(size_bytes)
        if content:
            write(content)
        digests: Digests = Future()
        digests.set_result([hashlib.sha256(content).hexdigest()])
        return digests

    def _next_chunk(self) -> tuple[memoryview, Buffer]:
        return self._window.take_some(self._current.size_bytes), self._window.buffer


class _Current:
    """The file that is copied now, as a stream that ends with its announced size."""

    def start(self, readinto: ReadInto, size_bytes: int) -> None:
        self._readinto = readinto
        self.size_bytes = self._left_bytes = size_bytes

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._left_bytes:
            return 0
        count = self._readinto(buffer[: self._left_bytes])
        if not count:
            raise EOFError(f"the content ends early: {self._left_bytes} bytes are missing")
        self._left_bytes -= count
        return count
