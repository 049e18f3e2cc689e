"""Download in one piece, from a server that knows no ranges."""

from __future__ import annotations

import threading

from urllib3 import BaseHTTPResponse

from engine.download.http import Client, Temporary
from engine.download.transfer import Patience, Transfer
from engine.download.version import version_of
from errors.download import SourceChanged, SourceInterrupted

MAX_RESTARTS = 3
"""Each fetches again what has been read already."""

_READ_BYTES = 1 << 20
"""At once: a read waits until all of it has come."""


class PlainDownload:
    """The body of ``response`` as a stream.

    If it breaks off and the server tells versions apart (ETag, Last-Modified), the same version is
    fetched again and what has been read is skipped; otherwise SourceInterrupted is raised: other
    content could follow.
    """

    def __init__(self, client: Client, response: BaseHTTPResponse, transfer: Transfer) -> None:
        self._client = client
        self._response = response
        self._version = version_of(response)
        self._stop = threading.Event()
        self._patience = Patience(transfer, self._stop)
        self._restarts = 0
        self._read_bytes = 0

    def readinto(self, buffer: memoryview, /) -> int:
        while True:
            try:
                count = self._client.read(self._response, buffer[:_READ_BYTES])
                if count or self._read_bytes == (self._version.size_bytes or self._read_bytes):
                    self._read_bytes += count
                    return count
                reason = "the connection was closed"
            except Temporary as failure:
                reason = str(failure.error.facts["reason"])
            self._restart(reason)

    def close(self) -> None:
        self._stop.set()
        self._response.close()
        self._client.abort()

    def _restart(self, reason: str) -> None:
        self._restarts += 1
        interrupted = self._interrupted(reason)
        if self._restarts > MAX_RESTARTS or not self._version.is_told:
            raise interrupted
        while True:
            self._response.close()
            try:
                self._response = self._client.get({})
                difference = self._version.difference(version_of(self._response))
                if difference is not None:
                    raise SourceChanged(source=self._client.shown, reason=difference)
                self._skip()
                return
            except Temporary as failure:
                self._patience.wait(failure)

    def _skip(self) -> None:
        scratch = memoryview(bytearray(_READ_BYTES))
        left_bytes = self._read_bytes
        while left_bytes:
            count = self._client.read(self._response, scratch[:left_bytes])
            if count == 0:
                raise Temporary(self._interrupted("the connection was closed"))
            left_bytes -= count

    def _interrupted(self, reason: str) -> SourceInterrupted:
        return SourceInterrupted(
            source=self._client.shown,
            received_bytes=self._read_bytes,
            size_bytes=self._version.size_bytes or "an unknown number of",
            reason=f"{reason}, and the server has no ranges to resume by",
        )
