"""One connection of a client by HTTP/1.1: its requests in order, their answers, and how long each may take.

One request at a time; a few that a client sends beyond it wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from errors.coded_error import CodedError
from errors.triton_front import InvalidInference, RequestTooLarge
from runner.http.rules import date, extra_headers
from runner.supervision.turns import FIRST_READ_BYTES, MAX_READ_BYTES, SMALL_PER_PART
from runner.triton_server.front.answers import error_body, statuses_of
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.connections import Connections
from runner.triton_server.front.http.requests import Request, RequestParser

_BUFFER = bytearray(MAX_READ_BYTES)
"""Of all connections, because what is read is used at once."""
_HEAD_TIMEOUT_S = 20.0
"""For the request line and headers."""
_BODY_TIMEOUT_S = 60.0
_IDLE_TIMEOUT_S = 75.0
"""Longer than clients and proxies keep an idle connection: a client must not send on one that we close."""
_MAX_UNREAD_BYTES = 1 << 20
_MAX_PIPELINED = 8
"""Requests that wait for the answer to an earlier one."""
_DISCARD_S = 2.0
"""How long the rest of a refused request is read: closed with unread data, the client may lose the answer."""
_READ_TIMEOUT_S = 60.0
"""For the client to read the last bytes."""
_JSON = b"application/json"


class HTTPConnection(asyncio.BufferedProtocol):
    """``handle`` is called with each request; it calls ``respond``, or ``begin``, ``write`` and ``end``."""

    on_disconnect: Callable[[], None] | None
    """Set by the handler of a request: called if its client disconnects before ``end``."""

    def __init__(
        self,
        handle: Callable[[Request, HTTPConnection], None],
        check: Callable[[Request], None],
        connections: Connections[HTTPConnection],
        budget: Budget,
        max_body_bytes: int,
    ) -> None:
        """``check`` raises a CodedError for a head whose body is not to be received."""
        self._handle = handle
        self._check = check
        self._connections = connections
        self._budget = budget
        self._requests = RequestParser(self, max_body_bytes)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._arrived: deque[Request] = deque()
        self._current: Request | None = None
        self._read_bytes = FIRST_READ_BYTES
        self._is_closing = False
        """No request follows the current one."""
        self._is_chunked = False
        self._refusal: tuple[int, bytes, tuple[bytes, ...]] | None = None
        """Nothing is parsed any more: this is answered after the requests that have arrived."""
        self.on_disconnect = None

    # The handler's interface

    def respond(
        self, status: int, body: bytes, content_type: bytes = _JSON, headers: tuple[bytes, ...] = ()
    ) -> None:
        """A whole answer."""
        length = b"content-length: %d" % len(body)
        request = self._current or self._requests.arriving
        is_head = request is not None and request.method == "HEAD"
        self._write(self._head(status, content_type, (length, *headers)) + (b"" if is_head else body))
        self._finish()

    def begin(self, status: int, content_type: bytes) -> None:
        """An answer of unknown length."""
        assert self._current is not None
        self._is_chunked = not self._current.is_version_1_0
        if not self._is_chunked:
            self._is_closing = True
        headers = (b"transfer-encoding: chunked",) if self._is_chunked else ()
        self._write(self._head(status, content_type, headers))

    def write(self, piece: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)

    def end(self) -> None:
        if self._is_chunked:
            self._write(b"0\r\n\r\n")
        self._finish()

    @property
    def is_idle(self) -> bool:
        return self._current is None

    @property
    def unread_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        self._limit_time(_HEAD_TIMEOUT_S)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.remove(self)
        self._limit_time(None)
        for request in (self._requests.arriving, self._current, *self._arrived):
            if request is not None:
                request.share.end()
        self._arrived.clear()
        self._requests.close()
        if self.on_disconnect is not None:
            on_disconnect, self.on_disconnect = self.on_disconnect, None
            on_disconnect()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_BUFFER)[: self._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._refusal is not None:
            return
        try:
            self._requests.feed(memoryview(_BUFFER)[:nbytes])
        except CodedError as exc:
            self._refuse(exc)
        num_useless = self._requests.num_small // SMALL_PER_PART
        self._read_bytes = self._connections.turns.after_read(self._transport, num_useless, self._read_bytes)
        self._take_next()

    # Requests

    def begin_request(self) -> Request:
        if len(self._arrived) == _MAX_PIPELINED:
            raise InvalidInference(reason=f"more than {_MAX_PIPELINED} wait on its connection")
        self._limit_arrival(_HEAD_TIMEOUT_S)
        return Request(self._budget.share(self._refuse))

    def take_head(self, request: Request) -> None:
        self._check(request)
        self._limit_arrival(_BODY_TIMEOUT_S)
        is_next = self._current is None and not self._arrived
        if is_next and request.expects_continue:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def take(self, request: Request) -> None:
        self._arrived.append(request)

    def _take_next(self) -> None:
        if self._current is not None or self._is_closing or self._transport.is_closing():
            return
        if self._arrived:
            self._limit_time(None)
            self._current = self._arrived.popleft()
            self._is_closing = not self._current.keeps_alive
            self._handle(self._current, self)
        elif self._refusal is not None:
            status, body, headers = self._refusal
            self._is_closing = True
            self.respond(status, body, headers=headers)

    def _finish(self) -> None:
        if self._current is not None:
            self._current.share.release()
        self._current = self.on_disconnect = None
        if self._is_closing:
            if self._refusal is not None and not self._transport.is_closing():
                with suppress(OSError):  # Its client has disconnected.
                    self._transport.write_eof()
                self._limit_time(_DISCARD_S)
            else:
                self._close()
            return
        self._limit_time(_IDLE_TIMEOUT_S if self._requests.arriving is None else _BODY_TIMEOUT_S)
        self._loop.call_soon(self._take_next)

    def _refuse(self, error: CodedError) -> None:
        """Answer what can't be received, and close: the rest of it would be read as a request."""
        is_head = self._requests.is_in_head and isinstance(error, RequestTooLarge)
        status = 431 if is_head else statuses_of(error)[0]
        headers = tuple(b"%b: %b" % each for each in extra_headers(error))
        self._refusal = status, error_body(str(error)), headers
        self._requests.stop()
        if (request := self._requests.arriving) is not None:
            request.share.release()
            request.body = bytearray()
        self._loop.call_soon(self._take_next)

    # Writing

    def _head(self, status: int, content_type: bytes, headers: tuple[bytes, ...]) -> bytes:
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"date: " + date(), b"content-type: " + content_type, *headers]
        if self._is_closing:
            lines.append(b"connection: close")
        elif self._current is not None and self._current.is_version_1_0:
            lines.append(b"connection: keep-alive")
        return b"\r\n".join([*lines, b"", b""])

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES + len(data):
            self._transport.abort()

    def _limit_arrival(self, timeout_s: float) -> None:
        if self._current is None:
            self._limit_time(timeout_s)

    def _limit_time(self, timeout_s: float | None) -> None:
        """Close the connection unless something else happens in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._close)

    def _close(self) -> None:
        """Once the client has read all, or after a while."""
        self._limit_time(None)
        self._timer = self._loop.call_later(_READ_TIMEOUT_S, self._transport.abort)
        self._transport.close()
