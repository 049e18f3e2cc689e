"""Fetch files by HTTP: several at once, continued after a cut, checked before they count as there.

A file is written to ``<destination>.incomplete`` and gets its own name only when it has the announced size
and hash, so neither a killed process nor a lost connection leaves half a file that looks whole.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it re-exports without saying so
    hf_raise_for_status,
    http_stream_backoff,
)

from engine.lock import lock, unlock
from engine.progress import Progress
from errors.build import DownloadCorrupt

NUM_PARALLEL = 8
NUM_TRIES = 5
NAP_S = 0.2
RETRY_DELAY_S = 1.0
"""Before the first try again; doubled as long as tries bring nothing."""
READ_TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 20


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
    """One file to fetch; ``headers`` may carry a token."""

    model_id: str
    name: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    destination: Path
    size_bytes: int | None
    digest: Digest | None

    @property
    def incomplete(self) -> Path:
        return self.destination.with_name(self.destination.name + ".incomplete")

    @property
    def missing_bytes(self) -> int:
        """What is still to come; 0 when it is there or its size is not known."""
        if self.destination.exists() or self.size_bytes is None:
            return 0
        arrived = self.incomplete.stat().st_size if self.incomplete.exists() else 0
        return max(self.size_bytes - arrived, 0)


class _Stopped(Exception):
    """Another download failed, or the build was cancelled."""


class _Transfer:
    """What the threads of one ``fetch_all`` share: how much has arrived, and whether to stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.arrived_bytes = 0
        self._lock = threading.Lock()

    def add(self, count_bytes: int) -> None:
        with self._lock:
            self.arrived_bytes += count_bytes


def fetch_all(downloads: Sequence[Download], progress: Progress | None) -> None:
    """Fetch every one of ``downloads`` that is not there yet; the first failure stops the others.

    Raises httpx2's and huggingface_hub's errors for the network, OSError for the disk, DownloadCorrupt
    for a wrong hash.
    """
    total_bytes = sum(download.missing_bytes for download in downloads) or None
    transfer = _Transfer()
    pool = ThreadPoolExecutor(NUM_PARALLEL, thread_name_prefix="download")
    try:
        pending: set[Future[None]] = {pool.submit(_fetch, download, transfer) for download in downloads}
        while pending:
            # NOTE: waits in naps, as Cog cancels by an exception that only running bytecode receives.
            done, pending = wait(pending, timeout=NAP_S, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if progress is not None:
                progress(transfer.arrived_bytes, total_bytes, "downloading")
    finally:
        transfer.stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(download: Download, transfer: _Transfer) -> None:
    download.destination.parent.mkdir(parents=True, exist_ok=True)
    lock_path = download.destination.with_name(download.destination.name + ".lock")
    descriptor = lock(lock_path)
    try:
        if not download.destination.exists():
            with download.incomplete.open("ab") as file:
                _receive(download, file, transfer)
                file.flush()
                os.fsync(file.fileno())
            _check(download)
            download.incomplete.replace(download.destination)
    finally:
        unlock(lock_path, descriptor)


def _receive(download: Download, file: BinaryIO, transfer: _Transfer) -> None:
    """Append to ``file`` until it has its size, giving up after NUM_TRIES tries that brought nothing."""
    tries_left = NUM_TRIES
    while file.tell() != download.size_bytes:
        before = file.tell()
        try:
            is_whole = _receive_rest(download, file, transfer)
            failure: Exception = httpx2.RemoteProtocolError("the answer ended early")
        except (httpx2.TransportError, HfHubHTTPError) as exc:
            if isinstance(exc, HfHubHTTPError) and exc.response.status_code < 500:
                raise
            is_whole, failure = False, exc
        if is_whole and download.size_bytes in (None, file.tell()):
            return
        tries_left = NUM_TRIES if file.tell() > before else tries_left - 1
        if tries_left == 0:
            raise failure
        if transfer.stop.wait(RETRY_DELAY_S * 2 ** (NUM_TRIES - tries_left)):
            raise _Stopped


def _receive_rest(download: Download, file: BinaryIO, transfer: _Transfer) -> bool:
    """One request for what ``file`` lacks; whether its answer was taken to the end."""
    if download.size_bytes is not None and file.tell() > download.size_bytes:
        _start_over(file, transfer)
    headers = {**download.headers, "Accept-Encoding": "identity"}
    if file.tell():
        headers["Range"] = f"bytes={file.tell()}-"
    with http_stream_backoff(
        "GET",
        download.url,
        headers=headers,
        timeout=READ_TIMEOUT_S,
        retry_on_exceptions=(),
        retry_on_status_codes=(429,),
    ) as response:
        if not _continues_at(response, file.tell()):
            _start_over(file, transfer)
            if response.status_code != httpx2.codes.OK:
                return False
        for chunk in response.iter_bytes():
            if transfer.stop.is_set():
                raise _Stopped
            file.write(chunk)
            transfer.add(len(chunk))
            if download.size_bytes is not None and file.tell() > download.size_bytes:
                return False  # It is something else, or has no end.
    return True


def _continues_at(response: httpx2.Response, offset: int) -> bool:
    """Whether the body begins at ``offset``: servers may ignore a range, or no longer have it."""
    if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
        return False
    hf_raise_for_status(response)
    if response.status_code == httpx2.codes.PARTIAL_CONTENT:
        return bool(response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"))
    return offset == 0


def _start_over(file: BinaryIO, transfer: _Transfer) -> None:
    transfer.add(-file.tell())
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
