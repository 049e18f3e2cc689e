"""Read, hash and write at once: each on a thread of its own, with a few buffers going round."""

from __future__ import annotations

import hashlib
import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

BUFFER_BYTES = 4 << 20
BUFFERS = 4
SMALL_BYTES = 256 << 10
"""Up to here handing a file from thread to thread takes longer than hashing and writing it on the spot."""


class HashingCopier:
    """Copies file after file and hashes what it copies, in memory of ``BUFFERS * BUFFER_BYTES``.

    For one thread alone, and no more after an error. Await digests before leaving its ``with`` block.
    """

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._small = memoryview(bytearray(SMALL_BYTES))
        self._unallocated = BUFFERS
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write")

    def __enter__(self) -> HashingCopier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)

    def copy(
        self,
        readinto: Callable[[memoryview], int],
        write: Callable[[memoryview], object],
        size_bytes: int,
    ) -> Future[str]:
        """Copy ``size_bytes`` from ``readinto`` to ``write``; the digest (hex) follows in its own time.

        ``write`` takes all it is given, maybe on another thread, and has done so when this returns or raises.
        EOFError if ``readinto`` ends early.
        """
        if size_bytes <= SMALL_BYTES:
            return self._copy_here(readinto, write, size_bytes)
        sha256 = hashlib.sha256()
        writes: deque[Future[None]] = deque()
        try:
            while size_bytes:
                buffer = self._take_buffer()
                chunk = buffer[: _read(readinto, buffer[:size_bytes])]
                size_bytes -= len(chunk)
                hashed = self._hasher.submit(sha256.update, chunk)
                writes.append(self._writer.submit(self._write, write, chunk, hashed, buffer))
                while writes and (writes[0].done() or not size_bytes):
                    writes.popleft().result()
        finally:
            wait(writes)
        return self._hasher.submit(sha256.hexdigest)

    def _copy_here(
        self,
        readinto: Callable[[memoryview], int],
        write: Callable[[memoryview], object],
        size_bytes: int,
    ) -> Future[str]:
        filled_bytes = 0
        while filled_bytes < size_bytes:
            filled_bytes += _read(readinto, self._small[filled_bytes:size_bytes])
        content = self._small[:size_bytes]
        if content:
            write(content)
        digest: Future[str] = Future()
        digest.set_result(hashlib.sha256(content).hexdigest())
        return digest

    def _take_buffer(self) -> memoryview:
        if self._unallocated and self._free.empty():
            self._unallocated -= 1
            return memoryview(bytearray(BUFFER_BYTES))
        return self._free.get()

    def _write(
        self,
        write: Callable[[memoryview], object],
        chunk: memoryview,
        hashed: Future[None],
        buffer: memoryview,
    ) -> None:
        """The buffer is filled anew once it is written and hashed, however the writing went."""
        try:
            write(chunk)
        finally:
            hashed.result()
            self._free.put(buffer)


def _read(readinto: Callable[[memoryview], int], buffer: memoryview) -> int:
    if not (count := readinto(buffer)):
        raise EOFError(f"the content ends early: at least {len(buffer)} bytes are missing")
    return count
