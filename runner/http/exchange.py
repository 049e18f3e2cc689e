"""One request and its answer: ASGI's functions, and faster ones for our own answers."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

from errors.api import InternalError
from errors.coded_error import CodedError
from runner.http.flow import FlowControl
from runner.http.rules import date

_MOST_WAITING = 32
"""Number of parts that are sent together. With more, the first would wait for long; with fewer, clients sleep
in between (docs/measurements/)."""
EXCHANGE_KEY = "cog_triton.exchange"
"""The key of a scope's ``Exchange``."""
BUSY = "its requests are not taken as fast as they arrive"
"""A reason not to read a connection."""
_WITHOUT_BODY = (204, 304)
_PAUSE_BYTES = 1 << 16
"""Size of a body that the application has not taken, above which no more is read."""
_logger = logging.getLogger(__name__)


@cache
def status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, http.HTTPStatus(status).phrase.encode())


def whole_answer(
    status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, has_body: bool
) -> bytes:
    """Write an answer after which the connection is closed."""
    lines = [(b"date", date()), *headers, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    head = status_line(status) + b"".join(b"%b: %b\r\n" % each for each in lines)
    return head + b"\r\n" + (body if has_body else b"")


class _Writes:
    """Buffer that sends what many streams write in one step of the event loop in quick succession.

    A client of many streams then stays awake for them; to wake it costs more than to send it an event.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.send)
        self._waiting.append((transport, data))
        if len(self._waiting) == _MOST_WAITING:
            self.send()

    def send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            transport.write(data)


_WRITES = _Writes()


class HTTPConnection(Protocol):
    """The connection of an exchange."""

    transport: asyncio.Transport

    @property
    def flow(self) -> FlowControl: ...

    def release(self) -> None:
        """Stop counting the bytes that were received: they are used."""

    def answered(self) -> None:
        """End the turn of the exchange that runs, whose answer is complete."""

    def close_with(self, error: CodedError) -> None:
        """Answer with the error if no answer has begun, and close the connection."""


class Exchange:
    """One request and its answer, whose head is sent with the beginning of its body."""

    def __init__(
        self,
        connection: HTTPConnection,
        scope: Scope,
        *,
        is_absolute: bool,
        keeps_alive: bool,
        expects_continue: bool,
    ) -> None:
        """Initialize. ``expects_continue``: the client waits for a 100."""
        self._connection = connection
        self._scope: Scope | None = scope
        """The scope, which refers to this; None once it runs, or its client has disconnected."""
        self.is_absolute = is_absolute
        """True if the request's target is a URL."""
        self.keeps_alive = keeps_alive
        """True if the connection stays open after the answer."""
        self._expects_continue = expects_continue
        self._request_body = bytearray()
        """The part of the body that the application has not taken."""
        self._is_received = False
        self._is_taken = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        """The head of the answer, while it waits for the body."""
        self._sends_body = scope["method"] != "HEAD"
        self._is_version_1_0 = scope["http_version"] == "1.0"
        self._is_chunked = False
        self.has_started = False
        """True once the answer has begun."""
        self.is_complete = False
        """True once the answer is complete."""
        self.is_disconnected = False
        self.on_disconnect: Callable[[], None] | None = None

    async def run(self, application: ASGIApp) -> None:
        """Answer, once. Log errors of the application."""
        scope, self._scope = self._scope, None
        if scope is None:
            return
        try:
            if not self._connection.flow.is_writable:
                await self._connection.flow.drain()  # The client has not read the answers before.
            await application(scope, self.receive, self.send)
        except Exception:
            _logger.exception("%s %r failed", scope["method"], scope["path"])
        finally:
            if not self.is_complete and not self.is_disconnected:
                self._connection.close_with(InternalError())

    def received(self, data: bytes) -> None:
        """Take a part of the request's body."""
        self._request_body += data
        if len(self._request_body) > _PAUSE_BYTES:
            self._connection.flow.pause_reading(BUSY)
        self._wake()

    def received_all(self) -> None:
        self._is_received = True
        self._wake()

    def disconnected(self) -> None:
        """End the exchange: its client has disconnected."""
        self.is_disconnected = True
        self._scope = None
        self._wake()
        if self.on_disconnect is not None:
            self.on_disconnect()

    def release(self) -> None:
        self._connection.release()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _is_over(self) -> bool:
        return self.is_disconnected or self.is_complete

    async def receive(self) -> Message:
        """Return the body since the last call; after its end, wait for the end of the exchange."""
        if self._expects_continue and not self._is_over():
            self._expects_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self._is_over() and (self._is_taken or not (self._request_body or self._is_received)):
            self._connection.flow.resume_reading(BUSY)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_over():
            return {"type": "http.disconnect"}
        self._is_taken = self._is_received
        if self._is_taken:
            # Else a disconnect of the client would not be noticed.
            self._connection.flow.resume_reading(BUSY)
        body, self._request_body = bytes(self._request_body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._is_received}

    async def send(self, message: Message) -> None:
        flow = self._connection.flow
        if not flow.is_writable:
            await flow.drain()
        if message["type"] == "http.response.start":
            self.start(message["status"], message["headers"])
        elif message.get("more_body", False):
            self._write(message.get("body", b""))
        else:
            self.finish(message.get("body", b""))

    def is_ready(self) -> bool:
        return self._connection.flow.is_writable and not self.is_disconnected

    @property
    def unread_bytes(self) -> int:
        return self._connection.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection at once."""
        self._connection.transport.abort()

    def write(self, data: bytes) -> None:
        """Send a part of the answer's body, with what others write in this step of the event loop."""
        if not self.is_disconnected:
            _WRITES.add(self._connection.transport, self._part(data))

    def finish(self, data: bytes = b"") -> None:
        """Send the last part of the answer."""
        if self.is_disconnected:
            return
        self._write(data, is_last=True)
        self.is_complete = True
        self._wake()
        if not self.keeps_alive:
            self._connection.transport.close()
        self._connection.answered()

    def respond(self, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        """Send a whole answer."""
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.finish(body)

    def _write(self, data: bytes, *, is_last: bool = False) -> None:
        if not self.is_disconnected:
            _WRITES.send()
            self._connection.transport.write(self._part(data, is_last=is_last))

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin the answer. ``headers``: by lower-case names, without ``connection`` and line breaks."""
        self.has_started = True
        self._expects_continue = False
        self._sends_body = self._sends_body and status not in _WITHOUT_BODY
        lines = [status_line(status), b"date: %b\r\n" % date()]
        has_length = False
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            has_length = has_length or name == b"content-length"
        self._is_chunked = not (has_length or self._is_version_1_0)
        if self._is_version_1_0 and not has_length:
            self.keeps_alive = False  # The end of the connection ends the answer.
        if not self.keeps_alive:
            lines.append(b"connection: close\r\n")
        elif self._is_version_1_0:
            lines.append(b"connection: keep-alive\r\n")
        if self._sends_body and self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def _part(self, body: bytes, *, is_last: bool = False) -> bytes:
        """Return a part of the answer's body as it is sent, after the head if that was not sent yet."""
        head, self._head = self._head, b""
        if not self._sends_body:
            return head
        if not self._is_chunked:
            return head + body
        chunk = b"%b%x\r\n%b\r\n" % (head, len(body), body) if body else head
        return chunk + b"0\r\n\r\n" if is_last else chunk
