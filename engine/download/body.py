"""The content of a URL as a stream that continues where a connection broke."""

import re
import threading
from dataclasses import InitVar, dataclass

from urllib3 import BaseHTTPResponse

from engine.download.http import Client, Temporary
from errors.download import SourceChanged, SourceFailed, SourceInterrupted

MAX_RESTARTS = 3
"""Number of restarts without ranges. Each fetches again what has been read already."""

_READ_BYTES = 1 << 20
"""Bytes of a read, which waits until all of them have come."""
_CAREFUL_READ_BYTES = 64 << 10
"""Bytes of a read after a failure: an unfinished read is lost if the connection is reset."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})$")


@dataclass(frozen=True)
class Transfer:
    """Settings of a download. The defaults hold 100 MiB."""

    connections: int = 8
    """Number of connections: servers often limit the bandwidth of each."""
    head_bytes: int = 256 << 10
    """Size of the first request: enough for the manifest, so that a cached engine needs no second request."""
    part_bytes: int = 10 << 20
    """Size of every later request."""
    parts_in_memory: int = 10
    attempts: int = 6
    """Failures in a row, without a byte between them, after which the download fails."""
    first_wait_s: float = 0.25
    """First wait before another attempt. It doubles with each."""
    longest_wait_s: float = 10.0
    longest_retry_after_s: float = 60.0
    """Longest wait that a server may ask for."""
    timeout_s: float = 30.0
    """Limit for a connection to open, and for an open one without a byte."""


DEFAULT_TRANSFER = Transfer()


@dataclass(frozen=True)
class Version:
    """Headers of a response that identify the content of a URL."""

    etag: str | None
    last_modified: str | None
    size_bytes: int | None

    @property
    def is_known(self) -> bool:
        """True if the server sends anything besides the size that changes with the content."""
        return bool(self.etag or self.last_modified)

    @property
    def if_range(self) -> str | None:
        """The value for ``If-Range``, which a weak ETag must not be."""
        return self.last_modified if not self.etag or self.etag.startswith("W/") else self.etag

    def difference(self, later: "Version") -> str | None:
        """Return where a later response contradicts this one, for a message; None if it does not."""
        for name in ("etag", "last_modified", "size_bytes"):
            was, now = getattr(self, name), getattr(later, name)
            if was is not None and now is not None and was != now:
                return f"{name} was {was}, now {now}"
        return None


@dataclass(eq=False)
class Body:
    """Bytes ``first`` to ``end`` (None: the last) of the content, for one thread; setting ``stop`` ends it.

    A server without ranges sends all: after a failure the content is fetched again and what has been read is
    skipped. That takes a known version (ETag, Last-Modified), because other content could follow, or a caller
    by whom the content ``is_verified``.
    """

    client: Client
    transfer: Transfer
    stop: threading.Event
    first: InitVar[int] = 0
    end: int | None = None
    version: Version | None = None
    """Version of the content; None before the first response."""
    has_ranges: bool | None = None
    """True if the server answers requests for ranges; None until that is known."""
    is_verified: bool = False

    def __post_init__(self, first: int) -> None:
        self.position = first
        self._failures = 0
        self._response: BaseHTTPResponse | None = None
        self._has_progressed = False
        self._whole_responses = 0
        self._read_bytes = _READ_BYTES

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer``. Raises the coded errors 13xx of ``engine.download.fetch``."""
        while self.position != self._limit:
            try:
                if self._response is None:
                    self._response = self._request()
                count = self._read(self._response, buffer)
                if count or self._limit in (None, self.position):
                    return count
                failure = Temporary(self._interrupted("the connection was closed"))
            except Temporary as exc:
                failure = exc
            self._retry(failure)
        return 0

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    @property
    def _limit(self) -> int | None:
        """Position where the content ends; None if that is unknown."""
        size_bytes = self.version.size_bytes if self.version is not None else None
        if self.end is None or self.has_ranges is False:
            return size_bytes
        return self.end if size_bytes is None else min(self.end, size_bytes)

    def _read(self, response: BaseHTTPResponse, buffer: memoryview) -> int:
        most_bytes = self._read_bytes if self._limit is None else self._limit - self.position
        count = self.client.read(response, buffer[: min(most_bytes, self._read_bytes)])
        self.position += count
        self._has_progressed = self._has_progressed or count > 0
        return count

    def _retry(self, failure: Temporary) -> None:
        """Prepare another request; raise the failure's error if there have been too many."""
        self.close()
        can_restart = self.is_verified or (self.version is not None and self.version.is_known)
        if self.has_ranges is False and self._whole_responses > (MAX_RESTARTS if can_restart else 0):
            reason = f"{failure.error.facts['reason']}, and the server has no ranges to resume by"
            raise self._interrupted(reason) from failure
        if self._has_progressed:
            self._has_progressed = False
            self._failures = 0
            return
        self._read_bytes = _CAREFUL_READ_BYTES
        self._failures += 1
        if self._failures >= self.transfer.attempts or self.stop.is_set():
            raise failure.error from failure
        wait_s = min(self.transfer.first_wait_s * 2 ** (self._failures - 1), self.transfer.longest_wait_s)
        self.stop.wait(max(wait_s, min(failure.retry_after_s, self.transfer.longest_retry_after_s)))

    def _request(self) -> BaseHTTPResponse:
        """Request the content from ``position`` on and return the response."""
        headers = self._range_headers()
        try:
            response = self.client.get(headers)
        except SourceFailed as error:
            if error.facts.get("status") not in (412, 416) or not headers:
                raise
            if self.version is None:  # Some servers respond so if the content is empty.
                return self._request_all()
            raise SourceChanged(source=self.client.shown, reason="it has become shorter") from error
        try:
            return self._checked(response, headers) or self._request_all()
        except BaseException:
            response.close()
            raise

    def _range_headers(self) -> dict[str, str]:
        if self.has_ranges is False or (self.position == 0 and self.end is None):
            return {}
        headers = {"Range": f"bytes={self.position}-{'' if self.end is None else self.end - 1}"}
        if self.version is not None and self.version.if_range is not None:
            headers["If-Range"] = self.version.if_range
        return headers

    def _request_all(self) -> BaseHTTPResponse:
        self.has_ranges = False
        return self._request()

    def _checked(self, response: BaseHTTPResponse, headers: dict[str, str]) -> BaseHTTPResponse | None:
        """Return ``response``, or None if it shows that the server must not be asked for ranges."""
        version = version_of(response)
        difference = self.version.difference(version) if self.version is not None else None
        if difference is not None:
            raise SourceChanged(source=self.client.shown, reason=difference)
        content_range = range_of(response)
        if response.status == 200 and not self.has_ranges:
            self.has_ranges = False if headers else self.has_ranges
            self._whole_responses += 1
            self._skip(response)
        elif self.has_ranges is False:
            raise SourceFailed(source=self.client.shown, reason=f"unexpected HTTP {response.status}")
        elif content_range is None or content_range[0] != self.position:
            if self.version is None:
                response.close()
                return None
            reason = "a request for a range with something else"
            raise Temporary(SourceFailed(source=self.client.shown, reason=reason))
        else:
            self.has_ranges = True
        self.version = self.version or version
        return response

    def _skip(self, response: BaseHTTPResponse) -> None:
        left_bytes = self.position
        scratch = memoryview(bytearray(min(left_bytes, _READ_BYTES)))
        while left_bytes:
            count = self.client.read(response, scratch[:left_bytes])
            if count == 0:
                raise Temporary(self._interrupted("the connection was closed"))
            left_bytes -= count

    def _interrupted(self, reason: str) -> SourceInterrupted:
        size_bytes = self.version.size_bytes if self.version is not None else None
        return SourceInterrupted(
            source=self.client.shown,
            received_bytes=self.position,
            size_bytes=size_bytes or "an unknown number of",
            reason=reason,
        )


def version_of(response: BaseHTTPResponse) -> Version:
    content_range = range_of(response)
    if content_range is not None:
        size_bytes: int | None = content_range[1]
    else:
        size_bytes = response.length_remaining if response.status == 200 else None
    return Version(response.headers.get("ETag"), response.headers.get("Last-Modified"), size_bytes)


def range_of(response: BaseHTTPResponse) -> tuple[int, int] | None:
    """Return first byte and total size that a 206 states; None without a valid Content-Range."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if response.status != 206 or match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        return None
    return int(match[1]), int(match[3])
