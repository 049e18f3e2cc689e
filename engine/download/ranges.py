"""Download by ranges on several connections at once; read in order, in bounded memory."""

import ctypes
import threading
from collections import deque
from contextlib import closing

from engine.download.body import Body, Transfer, Version
from engine.download.http import Client, is_refused
from errors.coded_error import CodedError


class _Part:
    """A range of the content, ``filled_bytes`` of which have arrived."""

    def __init__(self, first: int, buffer: memoryview) -> None:
        self.first = first
        self.buffer = buffer
        self.filled_bytes = 0


class RangedDownload:
    """Stream of what follows the first ``position`` bytes of a URL's content.

    Threads start with the first read. Each takes the next range and the memory for it in one step, so the
    range that is read next always has its memory. An interrupted range is resumed where it broke.
    """

    def __init__(self, client: Client, version: Version, position: int, transfer: Transfer) -> None:
        assert version.size_bytes is not None, "ranges are of a known whole"
        self._client = client
        self._version = version
        self._size_bytes = version.size_bytes
        self._transfer = transfer
        self._guard = threading.Lock()
        self._arrived = threading.Condition(self._guard)
        """Condition that the reader waits for, apart from the other to wake no thread for nothing."""
        self._freed = threading.Condition(self._guard)
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._next_first = position
        self._parts: deque[_Part] = deque()
        self._read_bytes = 0
        self._arrived_bytes = 0
        """Bytes of all parts that have arrived."""
        self._free: list[memoryview | None] = [None] * transfer.parts_in_memory
        """Memory for parts; None: not allocated yet."""
        self._threads: list[threading.Thread] = []

    def readinto(self, buffer: memoryview, /) -> int:
        if not self._threads:
            self._start()
        with self._guard:
            while True:
                if self._error is not None:
                    raise self._error
                if self._parts and self._parts[0].filled_bytes > self._read_bytes:
                    break
                if not self._parts and self._next_first >= self._size_bytes:
                    return 0
                self._arrived.wait()
            part = self._parts[0]
            available = part.buffer[self._read_bytes : part.filled_bytes]
        count = min(len(buffer), len(available))
        if count:
            _copy(buffer, available, count)
        self._read_bytes += count
        if self._read_bytes == len(part.buffer):
            self._release(part)
        return count

    def close(self) -> None:
        self._stop.set()
        with self._guard:
            self._freed.notify_all()
        self._client.pools.abort()
        for thread in self._threads:
            thread.join(timeout=1.0)  # a host name lookup can't be aborted, and does no harm

    def _start(self) -> None:
        left_bytes = self._size_bytes - self._next_first
        parts = -(-left_bytes // self._transfer.part_bytes)
        for _ in range(max(1, min(self._transfer.connections, parts))):
            self._threads.append(threading.Thread(target=self._work, name="fetch", daemon=True))
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        try:
            while (part := self._take()) is not None:
                self._fill(part)
        except Exception as exc:  # noqa: BLE001 (whatever it is, the reader has to learn of it)
            with self._guard:
                self._error = self._error or exc
                self._arrived.notify()
                self._freed.notify_all()

    def _take(self) -> _Part | None:
        """Take the next range, once there is memory for it. Return None if there is no more to do."""
        with self._guard:
            while not (self._is_over() or self._free):
                self._freed.wait()
            if self._is_over():
                return None
            memory = self._free.pop() or memoryview(bytearray(self._transfer.part_bytes))
            part = _Part(self._next_first, memory[: self._size_bytes - self._next_first])
            self._next_first += len(part.buffer)
            self._parts.append(part)
            self._freed.notify()  # The next thread takes another part, or ends.
            return part

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._error is not None or self._next_first >= self._size_bytes

    def _release(self, part: _Part) -> None:
        with self._guard:
            self._parts.popleft()
            self._read_bytes = 0
            if len(part.buffer) == self._transfer.part_bytes:
                self._free.append(part.buffer)
            self._freed.notify()

    def _fill(self, part: _Part) -> None:
        """Fill a part. As long as others arrive, a refusal is no failure: servers limit connections."""
        while part.filled_bytes < len(part.buffer) and not self._stop.is_set():
            of_others = self._arrived_bytes - part.filled_bytes
            try:
                self._receive(part)
            except CodedError as error:
                if not is_refused(error) or self._arrived_bytes - part.filled_bytes == of_others:
                    raise

    def _receive(self, part: _Part) -> None:
        body = Body(
            self._client,
            self._transfer,
            self._stop,
            first=part.first + part.filled_bytes,
            end=part.first + len(part.buffer),
            version=self._version,
            has_ranges=True,
        )
        with closing(body):
            while part.filled_bytes < len(part.buffer) and not self._stop.is_set():
                count = body.readinto(part.buffer[part.filled_bytes :])
                with self._guard:
                    part.filled_bytes += count
                    self._arrived_bytes += count
                    if part is self._parts[0]:
                        self._arrived.notify()


def _copy(to: memoryview, source: memoryview, count: int) -> None:
    """Copy bytes. NOTE: an assignment of slices would hold Python's lock; memmove releases it."""
    assert count <= min(len(to), len(source)), "ctypes checks no bounds"
    ctypes.memmove(
        ctypes.byref(ctypes.c_char.from_buffer(to)), ctypes.byref(ctypes.c_char.from_buffer(source)), count
    )
