"""Open an engine.tar (a path, a file URL, an HTTP(S) URL) as a stream."""

import os
import re
import stat
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from urllib.parse import unquote, urlsplit

from engine.disk import reading
from engine.download.address import ALLOW_VARIABLE
from engine.download.body import DEFAULT_TRANSFER, Body, Transfer
from engine.download.http import Client
from engine.download.ranges import RangedDownload
from engine.progress import Progress
from engine.redact import redact_url
from errors.download import AddressRefused, SourceUnsupported
from errors.engine_tar import EngineNotFound

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://|file:", re.IGNORECASE)


_Readable = Body | RangedDownload | BufferedReader


@dataclass(eq=False)
class Source(AbstractContextManager["Source"]):
    """An engine.tar as a stream: call ``readinto`` until it returns 0, then ``close``."""

    rest: _Readable
    place: str
    """The source as it may be shown: without credentials."""
    size_bytes: int | None
    identity: str | None
    """A value that changes whenever the content behind the same source does; None if there is none."""
    head: memoryview | bytes = b""
    progress: Progress | None = None
    client: Client | None = None
    _done_bytes: int = 0

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer``. Raises the errors of ``fetch``, and OSErrors, which PlainTar translates."""
        if self.head:
            count = min(len(buffer), len(self.head))
            buffer[:count] = self.head[:count]
            self.head = self.head[count:]
        else:
            count = self.rest.readinto(buffer) or 0
        self._done_bytes += count
        if self.progress and count:
            self.progress(self._done_bytes, self.size_bytes, "fetching")
        return count

    def close(self) -> None:
        self.rest.close()
        if self.client is not None:
            self.client.pools.close_idle()

    def __exit__(self, *exception: object) -> None:
        self.close()


def fetch(
    source: str | Path,
    *,
    only_public: bool = False,
    progress: Progress | None = None,
    transfer: Transfer = DEFAULT_TRANSFER,
) -> Source:
    """Open ``source``; of a URL, no more than ``transfer.head_bytes`` are requested before they are read.

    If the server supports ranges, the rest comes over several connections and a broken one is resumed where
    it broke; else in one piece (see Body). ``only_public``: the URL is a caller's, and neither it
    nor its redirects may lead to a private address (see ``engine.download.address``).
    Raises, here or while reading:
    EngineNotFound, EngineUnreadable, SourceUnsupported, SourceUnreachable, SourceNotFound, SourceForbidden,
    SourceFailed, SourceInterrupted, SourceChanged, RedirectRefused, AddressRefused.
    """
    path = local_path(source)
    if path is not None and only_public:
        raise AddressRefused(host=shown(source), address="a path of this machine", variable=ALLOW_VARIABLE)
    if path is not None:
        return _open_file(path, progress)
    client = Client(
        str(source), only_public=only_public, timeout_s=transfer.timeout_s, connections=transfer.connections
    )
    return _open_url(client, progress, transfer)


def local_path(source: str | Path) -> Path | None:
    """Return the path that ``source`` is or, as a file URL, names. Return None for an HTTP(S) URL.

    Raises SourceUnsupported for any other URL.
    """
    if isinstance(source, Path) or not (match := _URL.match(source)):
        return Path(source)
    scheme = (match[1] or "file").lower()
    if scheme in ("http", "https"):
        return None
    if scheme != "file":
        raise SourceUnsupported(source=redact_url(source), reason=f"{scheme} is not a known scheme")
    parts = urlsplit(source)
    if parts.netloc not in ("", "localhost"):
        raise SourceUnsupported(source=redact_url(source), reason="it names a file of another host")
    return Path(unquote(parts.path))


def shown(source: str | Path) -> str:
    return redact_url(source) if isinstance(source, str) and _URL.match(source) else str(source)


def _open_file(path: Path, progress: Progress | None) -> Source:
    with reading(path):
        if not path.exists():
            raise EngineNotFound(place=path, reason="does not exist")
        if path.is_dir():
            raise EngineNotFound(place=path, reason="is a directory, not a tar")
        file = path.open("rb")
        status = os.fstat(file.fileno())
    is_regular = stat.S_ISREG(status.st_mode)
    return Source(
        file,
        place=str(path),
        size_bytes=status.st_size if is_regular else None,
        identity=f"{status.st_size} {status.st_mtime_ns} {status.st_ino}" if is_regular else None,
        progress=progress,
    )


def _open_url(client: Client, progress: Progress | None, transfer: Transfer) -> Source:
    """Request the head; the response shows whether the server has ranges."""
    body = Body(client, transfer, threading.Event(), end=transfer.head_bytes)
    buffer, head_bytes = memoryview(bytearray(transfer.head_bytes)), 0
    try:
        while head_bytes < len(buffer) and (count := body.readinto(buffer[head_bytes:])):
            head_bytes += count
    except BaseException:
        body.close()
        client.pools.abort()
        raise
    version = body.version
    assert version is not None, "there was a response"
    rest: _Readable = body
    if body.has_ranges:
        client.pools.close_idle()  # It may take minutes until the rest is read.
        rest = RangedDownload(client, version, head_bytes, transfer)
    return Source(
        rest,
        place=client.shown,
        size_bytes=version.size_bytes,
        identity=f"{version.etag} {version.last_modified} {version.size_bytes}" if version.is_known else None,
        head=memoryview(bytes(buffer[:head_bytes])),
        progress=progress,
        client=client,
    )
