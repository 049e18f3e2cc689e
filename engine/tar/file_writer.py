"""Hash and write the contents of a window's buffers: large files in pieces, small ones in batches."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager

from engine.tar.manifest import FileEntry
from engine.tar.window import Buffer

SMALL_BYTES = 256 << 10
"""Size up to which handing a file to another thread takes longer than hashing and writing it on the spot."""
_BATCH_BYTES = 1 << 20

Write = Callable[[memoryview], object]
WriteFile = Callable[[str, memoryview], object]


class FileWriter(AbstractContextManager["FileWriter"]):
    """Two threads that write files: one hashes and one writes a large file; either does small ones whole.

    Only one thread may call it, and not after an error. Take all ``finished`` files within its ``with``
    block. ``write_file`` makes a small file of its name and content, on either thread.
    """

    def __init__(self, write_file: WriteFile) -> None:
        self._write_file = write_file
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write")
        self._batch: list[tuple[str, memoryview]] = []
        self._batch_bytes = 0
        self._batch_buffer: Buffer | None = None
        self._submitted = 0
        self._unfinished: deque[Future[list[tuple[str, FileEntry]]]] = deque()

    def __exit__(self, *exception: object) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)

    def add(self, name: str, content: memoryview, buffer: Buffer | None) -> None:
        """Add a small file, whose ``content`` is in ``buffer`` (None: in memory of its own)."""
        if self._batch_buffer is not buffer or self._batch_bytes >= _BATCH_BYTES:
            self._flush()
        if not self._batch and buffer is not None:
            buffer.hold()
        self._batch_buffer = buffer
        self._batch.append((name, content))
        self._batch_bytes += len(content)

    def finished(self, *, wait: bool) -> Iterator[tuple[str, FileEntry]]:
        """Yield the files that were hashed and written since the last call; with ``wait`` all of them."""
        if wait:
            self._flush()
        while self._unfinished and (wait or self._unfinished[0].done()):
            yield from self._unfinished.popleft().result()

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, buffer = self._batch, self._batch_buffer
        self._batch, self._batch_bytes, self._batch_buffer = [], 0, None
        self._submitted += 1
        thread = self._hasher if self._submitted % 2 else self._writer
        self._unfinished.append(thread.submit(self._make, batch, buffer))

    def copy(self, name: str, chunks: Callable[[], tuple[memoryview, Buffer]], write: Write) -> None:
        """Hash and ``write`` what ``chunks`` returns until it is empty. All is written on return."""
        self._flush()
        sha256, size_bytes = hashlib.sha256(), 0
        writes: deque[Future[None]] = deque()
        try:
            while (step := chunks())[0]:
                chunk, buffer = step
                size_bytes += len(chunk)
                buffer.hold()
                hashed = self._hasher.submit(sha256.update, chunk)
                writes.append(self._writer.submit(_write, write, chunk, hashed, buffer))
                while writes and writes[0].done():
                    writes.popleft().result()
            while writes:
                writes.popleft().result()
        finally:
            wait_for(writes)
        self._unfinished.append(
            self._hasher.submit(lambda: [(name, FileEntry(size_bytes, sha256.hexdigest()))])
        )

    def _make(
        self, batch: list[tuple[str, memoryview]], buffer: Buffer | None
    ) -> list[tuple[str, FileEntry]]:
        found = []
        try:
            for name, content in batch:
                found.append((name, FileEntry(len(content), hashlib.sha256(content).hexdigest())))
                self._write_file(name, content)
        finally:
            if buffer is not None:
                buffer.release()
        return found


def _write(write: Write, chunk: memoryview, hashed: Future[None], buffer: Buffer) -> None:
    """Write a chunk, and release its buffer once it is written and hashed, even if that failed."""
    try:
        write(chunk)
    finally:
        hashed.result()
        buffer.release()
