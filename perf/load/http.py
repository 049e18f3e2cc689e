"""An HTTP/1.1 client that costs as little as can be, because it shares the machine with what it measures.

Received bytes are stored with their time and parsed after the test. Standard library only, so that load tests
run with any Python. docs/measurements/comparisons.md compares it with others.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

from perf.load.response import MalformedResponse, Response, ResponseReader

_CONNECT_TIMEOUT_S = 30.0


class RequestFailed(Exception):
    """No whole answer came; the text says why. ``response`` is what came of it."""

    def __init__(self, reason: str, response: Response | None = None) -> None:
        super().__init__(reason)
        self.response = response


class _NothingCame(RequestFailed):
    """The server closed the connection without a word."""


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Origin":
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


@dataclass(frozen=True)
class Request:
    """One request, encoded once however often it is sent."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""

    @cached_property
    def origin(self) -> Origin:
        return Origin.of(self.url)

    @cached_property
    def encoded(self) -> bytes:
        parts = urlsplit(self.url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Host": parts.netloc.rpartition("@")[2], **self.headers}
        if self.body or self.method == "POST":
            headers["Content-Length"] = str(len(self.body))
        lines = [f"{self.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    _transport: asyncio.Transport
    _reader: ResponseReader
    _answer: asyncio.Future[Response] | None = None
    _has_received = False

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: Request) -> asyncio.Future[Response]:
        self._reader = ResponseReader()
        self._answer = asyncio.get_running_loop().create_future()
        self._has_received = False
        self._transport.write(request.encoded)
        return self._answer

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        if self._answer is None or self._answer.done():
            self.close()  # No request is in flight.
            return
        self._has_received = True
        try:
            self._reader.feed(now_s, data)
        except MalformedResponse as exc:
            self.fail(RequestFailed(str(exc)))
            return
        if self._reader.is_over:
            self._finish(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is None or self._answer.done():
            return
        if self._reader.end():
            self._finish(self._answer)
        elif self._has_received:
            reason = f"the connection ended before the answer did ({exc or 'the server closed it'})"
            self.fail(RequestFailed(reason, self._reader.response))
        else:
            self.fail(_NothingCame(f"no answer came ({exc or 'the server closed the connection'})"))

    def fail(self, error: RequestFailed) -> None:
        """End the request in flight, if there is one, and the connection."""
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def close(self) -> None:
        self._transport.abort()

    def _finish(self, answer: asyncio.Future[Response]) -> None:
        response = self._reader.response
        assert response is not None
        if response.headers.get("connection", "").lower() == "close":
            self._transport.close()
        answer.set_result(response)


class HttpClient:
    """Client that keeps connections open and uses them again. Close it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle: dict[Origin, list[_Connection]] = {}
        self._addresses: dict[Origin, str] = {}

    async def send(self, request: Request) -> Response:
        """Send a request and return the whole answer. Raises RequestFailed."""
        idle = self._idle.setdefault(request.origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_open:
                try:
                    return await self._exchange(connection, request)
                except _NothingCame:
                    pass  # NOTE: a server may close an idle connection while a request is on its way to it.
        return await self._exchange(await self._connect(request.origin), request)

    async def prepare(self, url: str, count: int) -> None:
        """Open this many connections, so that none has to be opened while time is taken."""
        origin = Origin.of(url)
        idle = self._idle.setdefault(origin, [])
        while len(idle) < count:
            idle.append(await self._connect(origin))

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _exchange(self, connection: _Connection, request: Request) -> Response:
        late = RequestFailed(f"no whole answer within {self._timeout_s:g} s")
        timer = asyncio.get_running_loop().call_later(self._timeout_s, connection.fail, late)
        try:
            response = await connection.send(request)
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            timer.cancel()
        if connection.is_open:
            self._idle[request.origin].append(connection)
        return response

    async def _connect(self, origin: Origin) -> _Connection:
        is_tls = origin.scheme == "https"
        connecting = asyncio.get_running_loop().create_connection(
            _Connection,
            self._addresses.get(origin, origin.host),
            origin.port,
            ssl=ssl.create_default_context() if is_tls else None,
            server_hostname=origin.host if is_tls else None,
        )
        try:
            transport, connection = await asyncio.wait_for(connecting, _CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError as exc:
            raise RequestFailed(f"no connection within {_CONNECT_TIMEOUT_S:g} s") from exc
        except OSError as exc:
            raise RequestFailed(f"no connection: {exc}") from exc
        # Names are looked up once: threads that look them up cost more than the requests.
        self._addresses[origin] = transport.get_extra_info("peername")[0]
        return connection
