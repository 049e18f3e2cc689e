"""Download files by HTTP: several at once, resumed after an interruption, verified before they are used.

A file is written to ``<destination>.incomplete`` and renamed once its size and hash are verified, so neither
a killed process nor a lost connection leaves half a file that looks whole.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from urllib3 import BaseHTTPResponse

from engine.download.http import Client, Temporary
from engine.download.transfer import Patience, Transfer
from engine.download.version import range_of, version_of
from engine.lock import lock, unlock
from engine.progress import Progress
from errors.build import DownloadCorrupt
from errors.download import SourceFailed, SourceInterrupted

NUM_PARALLEL = 8
NUM_TRIES = 5
"""In a row that bring no byte."""
RETRY_DELAY_S = 1.0
"""Before the first retry; doubles with each try that brings no byte."""
READ_TIMEOUT_S = 30.0
CHUNK_BYTES = 256 << 10

_POLL_S = 0.2


@dataclass(frozen=True)
class Digest:
    """An announced hash: ``sha256`` of the content, or git's ``blob`` SHA-1 of it."""

    algorithm: str
    hex: str

    def of_file(self, path: Path) -> str:
        """The same hash of the file at ``path``, hexadecimal."""
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
    """One file to download; ``authorization`` is sent to the host of ``url`` alone."""

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
        """0 if the file is there or its size is not known."""
        if self.destination.exists() or self.size_bytes is None:
            return 0
        arrived = self.incomplete.stat().st_size if self.incomplete.exists() else 0
        return max(self.size_bytes - arrived, 0)


class _Stopped(Exception):
    """Another download failed, or the build was cancelled."""


class _Shared:
    """State that the threads of one ``fetch_all`` share."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.arrived_bytes = 0
        self._lock = threading.Lock()

    def add(self, count_bytes: int) -> None:
        with self._lock:
            self.arrived_bytes += count_bytes


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


def _fetch(download: Download, shared: _Shared) -> None:
    download.destination.parent.mkdir(parents=True, exist_ok=True)
    lock_path = download.destination.with_name(download.destination.name + ".lock")
    descriptor = lock(lock_path)
    try:
        if not download.destination.exists():
            with download.incomplete.open("ab") as file:
                _receive(download, file, shared)
                file.flush()
                os.fsync(file.fileno())
            _check(download)
            download.incomplete.replace(download.destination)
    finally:
        unlock(lock_path, descriptor)


def _receive(download: Download, file: BinaryIO, shared: _Shared) -> None:
    """Append to ``file`` until it has its size, giving up after NUM_TRIES tries that brought nothing."""
    transfer = Transfer(attempts=NUM_TRIES, first_wait_s=RETRY_DELAY_S, timeout_s=READ_TIMEOUT_S)
    client = Client(
        download.url,
        only_public=False,
        timeout_s=transfer.timeout_s,
        connections=1,
        authorization=download.authorization,
    )
    patience = Patience(transfer, shared.stop)
    try:
        while file.tell() != download.size_bytes:
            before = file.tell()
            try:
                is_whole = _receive_rest(download, client, file, shared)
                failure = Temporary(_interrupted(download, file))
            except Temporary as exc:
                is_whole, failure = False, exc
            if is_whole and download.size_bytes in (None, file.tell()):
                return
            if file.tell() > before:
                patience.reset()
            else:
                patience.wait(failure)
    finally:
        client.close_idle()


def _receive_rest(download: Download, client: Client, file: BinaryIO, shared: _Shared) -> bool:
    """One request for what ``file`` lacks; whether its response was received to the end."""
    if download.size_bytes is not None and file.tell() > download.size_bytes:
        _start_over(file, shared)
    try:
        response = client.get({"Range": f"bytes={file.tell()}-"} if file.tell() else {})
    except SourceFailed as exc:
        if exc.facts.get("status") != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        _start_over(file, shared)
        return False
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with closing(response):
        if not _continues_at(response, file.tell()):
            _start_over(file, shared)
            if response.status != HTTPStatus.OK:
                return False
        while count := client.read(response, buffer):
            if shared.stop.is_set():
                raise _Stopped
            file.write(buffer[:count])
            shared.add(count)
            if download.size_bytes is not None and file.tell() > download.size_bytes:
                return False  # It is another file, or has no end.
        return version_of(response).size_bytes in (None, file.tell())


def _continues_at(response: BaseHTTPResponse, offset: int) -> bool:
    """Whether the body begins at ``offset``: servers may ignore a range."""
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        content_range = range_of(response)
        return content_range is not None and content_range[0] == offset
    return offset == 0


def _interrupted(download: Download, file: BinaryIO) -> SourceInterrupted:
    return SourceInterrupted(
        source=download.name,
        received_bytes=file.tell(),
        size_bytes=download.size_bytes or "an unknown number of",
        reason="the connection was closed",
    )


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
