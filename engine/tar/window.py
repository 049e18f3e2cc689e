"""Read a stream into a few large buffers that are reused; content is used in place, not copied."""

import queue
import threading
from typing import Protocol

BUFFER_BYTES = 4 << 20
BUFFERS = 4
"""Number of buffers. Two would do; with four, reading, hashing and writing each have one while one waits."""


class ByteStream(Protocol):
    """Source of an engine's bytes: an open binary file, a download, standard input."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill some of ``buffer`` and return the number of bytes, 0 at the end."""


class Buffer:
    """Memory that is reused once all its holders have released it."""

    def __init__(self, free: "queue.SimpleQueue[Buffer]") -> None:
        self.memory = memoryview(bytearray(BUFFER_BYTES))
        self._free = free
        self._holds = 0
        self._guard = threading.Lock()

    def hold(self) -> None:
        with self._guard:
            self._holds += 1

    def release(self) -> None:
        """Release the buffer. Any thread may call this."""
        with self._guard:
            self._holds -= 1
            is_free = self._holds == 0
        if is_free:
            self._free.put(self)

    @property
    def is_held_once(self) -> bool:
        return self._holds == 1


class Window:
    """A stream's content, for one thread. It is valid until the next call, or while ``buffer`` is held."""

    def __init__(self, stream: ByteStream) -> None:
        self.buffer: Buffer
        """Buffer of what was returned last."""
        self._stream = stream
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._unallocated = BUFFERS
        self._start = self._end = 0
        self._use_another_buffer()

    def take(self, size_bytes: int) -> memoryview:
        """Return the next ``size_bytes`` (at most BUFFER_BYTES) in one piece; fewer only at the end."""
        while self._end - self._start < size_bytes and self._fill(size_bytes):
            pass
        return self._pass(size_bytes)

    def take_some(self, most_bytes: int) -> memoryview:
        """Return what is there of the next ``most_bytes``: at least one, or none at the stream's end."""
        if self._start == self._end:
            self._fill(1)
        return self._pass(most_bytes)

    def _pass(self, most_bytes: int) -> memoryview:
        start = self._start
        self._start = min(self._end, start + most_bytes)
        return self.buffer.memory[start : self._start]

    def _fill(self, wanted_bytes: int) -> int:
        """Read on, into memory with room for ``wanted_bytes`` from the start. Return 0 at the end."""
        if self._start == self._end and self.buffer.is_held_once:
            self._start = self._end = 0
        if self._start + wanted_bytes > BUFFER_BYTES or self._end == BUFFER_BYTES:
            self._use_another_buffer()
        count = self._stream.readinto(self.buffer.memory[self._end :]) or 0
        self._end += count
        return count

    def _use_another_buffer(self) -> None:
        if self._unallocated and self._free.empty():
            self._unallocated -= 1
            buffer = Buffer(self._free)
        else:
            buffer = self._free.get()
        buffer.hold()
        if left_bytes := self._end - self._start:
            buffer.memory[:left_bytes] = self.buffer.memory[self._start : self._end]
        if self._end:
            self.buffer.release()
        self.buffer = buffer
        self._start, self._end = 0, left_bytes
