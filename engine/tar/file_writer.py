"""Hash and write the contents of a window's buffers: large files in pieces, small ones in batches."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from engine.tar.window import Buffer

SMALL_BYTES = 256 << 10
"""Up to here handing a file from thread to thread takes longer than hashing and writing it on the spot."""
_BATCH_BYTES = 1 << 20

Write = Callable[[memoryview], object]
WriteFile = Callable[[str, memoryview], object]
Digests = Future[list[str]]
"""SHA-256 (hex) of some files, in order."""


class FileWriter:
    """Two threads: of a large file one hashes and one writes; small files are done whole by either.

    For one thread alone, and no more after an error. Await digests before leaving its ``with`` block.
    ``write_file`` makes a small file of its name and content, on either thread.
    """

    def __init__(self, write_file: WriteFile) -> None:
        self._write_file = write_file
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write")
        self._batch: list[tuple[str, memoryview]] = []
        self._batch_bytes = 0
        self._batch_buffer: Buffer | None = None
        self._submitted = 0

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)

    def add(self, name: str, content: memoryview, buffer: Buffer | None) -> Digests | None:
        """Add a small file, whose ``content`` is in ``buffer`` (None: in memory of its own).

        Returns digests of files added before, of which there are enough now to be worth a task.
        """
        digests = None
        if self._batch and (self._batch_buffer is not buffer or self._batch_bytes >= _BATCH_BYTES):
            digests = self.flush()
        if not self._batch and buffer is not None:
            buffer.hold()
        self._batch_buffer = buffer
        self._batch.append((name, content))
        self._batch_bytes += len(content)
        return digests

    def flush(self) -> Digests:
        """Set to work on what was added; its digests."""
        batch, buffer = self._batch, self._batch_buffer
        self._batch, self._batch_bytes, self._batch_buffer = [], 0, None
        self._submitted += 1
        thread = self._hasher if self._submitted % 2 else self._writer
        return thread.submit(self._make, batch, buffer)

    def copy(self, chunks: Callable[[], tuple[memoryview, Buffer]], write: Write) -> Digests:
        """Hash and ``write`` what ``chunks`` returns until it is empty; all is written on return."""
        sha256 = hashlib.sha256()
        writes: deque[Future[None]] = deque()
        try:
            while (step := chunks())[0]:
                chunk, buffer = step
                buffer.hold()
                hashed = self._hasher.submit(sha256.update, chunk)
                writes.append(self._writer.submit(_write, write, chunk, hashed, buffer))
                while writes and writes[0].done():
                    writes.popleft().result()
            while writes:
                writes.popleft().result()
        finally:
            wait(writes)
        return self._hasher.submit(lambda: [sha256.hexdigest()])

    def _make(self, batch: list[tuple[str, memoryview]], buffer: Buffer | None) -> list[str]:
        digests = []
        try:
            for name, content in batch:
                digests.append(hashlib.sha256(content).hexdigest())
                self._write_file(name, content)
        finally:
            if buffer is not None:
                buffer.release()
        return digests


def _write(write: Write, chunk: memoryview, hashed: Future[None], buffer: Buffer) -> None:
    """The buffer is filled anew once it is written and hashed, however the writing went."""
    try:
        write(chunk)
    finally:
        hashed.result()
        buffer.release()
