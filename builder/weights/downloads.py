"""Download files by HTTP: several at once, resumed after an interruption, verified before they are used.

A file is written to ``<destination>.incomplete`` and renamed once its size and hash are verified, so neither
a killed process nor a lost connection leaves half a file that looks whole.
"""

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import BinaryIO

from engine.download.body import Body, Transfer, Version
from engine.download.http import Client, is_refused
from engine.lock import locked
from engine.progress import Progress
from errors.build import DownloadCorrupt
from errors.coded_error import CodedError
from errors.download import SourceChanged

NUM_PARALLEL = 8
NUM_TRIES = 5
"""Tries in a row that bring no byte, after which a download fails."""
RETRY_DELAY_S = 1.0
"""Wait before the first retry. It doubles with each try that brings no byte."""
READ_TIMEOUT_S = 30.0
CHUNK_BYTES = 256 << 10

_POLL_S = 0.2


@dataclass(frozen=True)
class Digest:
    """Announced hash: ``sha256`` of the content, or git's ``blob`` SHA-1 of it."""

    algorithm: str
    hex: str

    def of_file(self, path: Path) -> str:
        """Compute the same hash of the file at ``path``, hexadecimal."""
        if self.algorithm == "sha256":
            state = hashlib.sha256()
        else:
            state = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                state.update(chunk)
        return state.hexdigest()


@dataclass(frozen=True)
class Download:
    """File to download; ``authorization`` is sent to the host of ``url`` alone."""

    model_id: str
    name: str
    url: str
    authorization: str | None = field(repr=False)
    destination: Path
    size_bytes: int | None
    digest: Digest | None

    @property
    def incomplete(self) -> Path:
        return self.destination.with_name(self.destination.name + ".incomplete")

    @property
    def missing_bytes(self) -> int:
        """Bytes to download; 0 if the file is there or its size is not known."""
        if self.destination.exists() or self.size_bytes is None:
            return 0
        arrived = self.incomplete.stat().st_size if self.incomplete.exists() else 0
        return max(self.size_bytes - arrived, 0)


class _Stopped(Exception):
    """Signal that another download failed, or that the build was cancelled."""


class _Shared:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.arrived_bytes = 0
        self.received_bytes = 0
        """Number of bytes of all files that were received, also of those that started over."""
        self._lock = threading.Lock()

    def add(self, count_bytes: int) -> None:
        with self._lock:
            self.arrived_bytes += count_bytes
            self.received_bytes += max(count_bytes, 0)


def fetch_all(downloads: Sequence[Download], progress: Progress | None) -> None:
    """Download every file of ``downloads`` that is not there yet; the first failure stops the others.

    Raises the errors of ``engine.download``, OSError for the disk, DownloadCorrupt for a wrong hash.
    """
    total_bytes = sum(download.missing_bytes for download in downloads) or None
    shared = _Shared()
    pool = ThreadPoolExecutor(NUM_PARALLEL, thread_name_prefix="download")
    try:
        pending: set[Future[None]] = {pool.submit(_fetch, download, shared) for download in downloads}
        while pending:
            # NOTE: polls, because Cog cancels by an exception that only running bytecode receives.
            done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if progress is not None:
                progress(shared.arrived_bytes, total_bytes, "downloading")
    finally:
        shared.stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def beginning(download: Download) -> Iterator[BinaryIO]:
    """Provide a stream of the file from its beginning; nothing is kept. Raises like ``fetch_all``."""
    with BufferedReader(_Arriving(download), CHUNK_BYTES) as file:
        yield file


class _Arriving(RawIOBase):
    def __init__(self, download: Download) -> None:
        self._client = _client(download)
        self._body = _body(self._client, download, threading.Event(), first=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        return self._body.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
            self._client.pools.close_idle()
        super().close()


def _client(download: Download) -> Client:
    return Client(
        download.url,
        only_public=False,
        timeout_s=READ_TIMEOUT_S,
        connections=1,
        authorization=download.authorization,
    )


def _body(client: Client, download: Download, stop: threading.Event, *, first: int) -> Body:
    announced = Version(None, None, download.size_bytes)
    transfer = Transfer(attempts=NUM_TRIES, first_wait_s=RETRY_DELAY_S, longest_retry_after_s=300.0)
    return Body(client, transfer, stop, first=first, version=announced, is_verified=True)


def _fetch(download: Download, shared: _Shared) -> None:
    download.destination.parent.mkdir(parents=True, exist_ok=True)
    with locked(download.destination.with_name(download.destination.name + ".lock")):
        if not download.destination.exists():
            with download.incomplete.open("ab") as file:
                try:
                    _receive_patiently(download, file, shared)
                except SourceChanged:
                    if not file.tell():
                        raise
                    _start_over(file, shared)
                    _receive_patiently(download, file, shared)
                file.flush()
                os.fsync(file.fileno())
            _check(download)
            download.incomplete.replace(download.destination)


def _receive_patiently(download: Download, file: BinaryIO, shared: _Shared) -> None:
    """Receive a file. As long as others arrive, a refusal is no failure: servers limit connections."""
    while True:
        of_others = shared.received_bytes - file.tell()
        try:
            return _receive(download, file, shared)
        except CodedError as error:
            is_alone = shared.received_bytes - file.tell() == of_others
            # NOTE: files without a digest start over each time: two would wait for each other for ever.
            is_final = is_alone or download.digest is None or not is_refused(error)
            if is_final or shared.stop.is_set():
                raise


def _receive(download: Download, file: BinaryIO, shared: _Shared) -> None:
    """Append to ``file`` what it lacks, giving up after NUM_TRIES tries that brought nothing."""
    if download.size_bytes is not None and file.tell() > download.size_bytes:
        _start_over(file, shared)
    if download.digest is None and file.tell():
        _start_over(file, shared)  # Nothing could prove that its parts fit together.
    client = _client(download)
    body = _body(client, download, shared.stop, first=file.tell())
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while count := body.readinto(buffer):
            if shared.stop.is_set():
                raise _Stopped
            file.write(buffer[:count])
            shared.add(count)
    finally:
        body.close()
        client.pools.close_idle()


def _start_over(file: BinaryIO, shared: _Shared) -> None:
    shared.add(-file.tell())
    file.seek(0)
    file.truncate()


def _check(download: Download) -> None:
    if download.digest is None:
        return
    actual = download.digest.of_file(download.incomplete)
    if actual != download.digest.hex:
        download.incomplete.unlink()
        raise DownloadCorrupt(
            name=download.name,
            model_id=download.model_id,
            algorithm=download.digest.algorithm,
            actual=actual,
            expected=download.digest.hex,
        )
