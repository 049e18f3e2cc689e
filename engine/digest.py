"""SHA-256 beside the work: one thread hashes while the caller reads and writes."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

BUFFER_BYTES = 1 << 20
BUFFERS = 8


class HashingCopier:
    """Copies file after file and hashes what it copies, in memory of ``BUFFERS * BUFFER_BYTES``.

    A buffer goes to the hashing thread and to ``write`` at once; it is filled anew when both are done.
    For one thread alone, and no more after an error. Await digests before leaving its ``with`` block.
    """

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._unallocated = BUFFERS
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")

    def __enter__(self) -> HashingCopier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def copy(
        self,
        readinto: Callable[[memoryview], int],
        write: Callable[[memoryview], object],
        size_bytes: int,
    ) -> Future[str]:
        """Copy ``size_bytes`` from ``readinto`` to ``write``; the digest (hex) follows in its own time.

        ``write`` takes all it is given. EOFError if ``readinto`` ends early.
        """
        sha256 = hashlib.sha256()
        left_bytes = size_bytes
        while left_bytes:
            buffer = self._take_buffer()
            chunk = buffer[: readinto(buffer[:left_bytes])]
            if not chunk:
                raise EOFError(f"{left_bytes} of {size_bytes} bytes are missing")
            self._thread.submit(self._hash, sha256, chunk, buffer)
            write(chunk)
            left_bytes -= len(chunk)
        return self._thread.submit(sha256.hexdigest)

    def _take_buffer(self) -> memoryview:
        if self._unallocated and self._free.empty():
            self._unallocated -= 1
            return memoryview(bytearray(BUFFER_BYTES))
        return self._free.get()

    def _hash(self, sha256: _Hash, chunk: memoryview, buffer: memoryview) -> None:
        sha256.update(chunk)
        self._free.put(buffer)
