"""uvicorn's HTTP protocol with bounds: of a request's head, of its bytes on the wire, of pipelined requests.

What exceeds a bound gets a coded answer as soon as that is known, and does not reach the application. A
request that offers to upgrade the connection (to HTTP/2, as Java's client does) is answered as any other.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from errors.api import BodyTooLarge, HeaderTooLarge, InvalidHTTP
from errors.coded_error import CodedError
from runner.api.call import BODY_KEY, RELEASE_KEY
from runner.api.error_response import Fields, error_body, status_of
from runner.api.http_server.body import ConnectionBody, JoinedHead
from runner.api.http_server.connections import Connections
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_of
from runner.supervision.turns import FIRST_READ_BYTES, MAX_READ_BYTES, SMALL_BYTES, SMALL_PER_PART

_MAX_PIPELINED = 8
_MAX_HEADERS = 100
"""A small one takes 30 times its size in memory."""
_WIRE_FACTOR = 2
"""Bytes on the wire of a chunked body, for each byte of the limit of bodies."""
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
"""What is read after a refusal. NOTE: if unread data is left, the client's kernel may drop our answer."""


class _Flow(FlowControl):
    """Nothing is read while the connection is held or waits for its turn, whatever uvicorn asks for."""

    is_held = False
    is_waiting = False

    def resume_reading(self) -> None:
        if not self.is_held and not self.is_waiting:
            super().resume_reading()


class _Parser(HttpRequestParser):
    """NOTE: httptools reads no body after an offer to upgrade the connection, and nothing after that."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does.
        self._protocol = protocol

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except HttpParserUpgrade as exc:
            self._protocol.read_without_upgrade(data[exc.args[0] :])


class BoundedProtocol(HttpToolsProtocol):
    """A subclass sets ``registry``."""

    registry: ClassVar[Connections]

    flow: _Flow
    buffered_bytes = 0
    _is_receiving = False
    """From the first byte of a request to its last."""
    _is_in_head = False
    _head_bytes = 0
    _wire_bytes = 0
    _read_bytes = FIRST_READ_BYTES
    _num_small = 0
    """Lines of a head and small chunks of the last read."""
    _is_refused = False
    _refusal: CodedError | None = None
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self.flow = _Flow(transport)
        self._limit_read(FIRST_READ_BYTES)
        self.registry.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.closed(self)
        super().connection_lost(exc)
        if self._running is not None:
            self._end(self._running)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._wire_bytes += len(data)
            if self._wire_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        self._num_small = 0
        super().data_received(data)
        num_useless = self._num_small // SMALL_PER_PART
        self._limit_read(self.registry.turns.after_read(self, num_useless, self._read_bytes))
        if not self._is_refused:
            self._count(len(data))

    def _count(self, num_bytes: int) -> None:
        limits = self.registry.limits
        if self._is_receiving:
            self._wire_bytes += num_bytes
            most_bytes = limits.max_head_bytes + _WIRE_FACTOR * limits.max_body_bytes + MAX_READ_BYTES
            if self._is_in_head and self._wire_bytes > limits.max_head_bytes:
                self._reject(HeaderTooLarge(max_bytes=limits.max_head_bytes))
                return
            if self._wire_bytes > most_bytes:
                self._reject(BodyTooLarge(max_bytes=limits.max_body_bytes))
                return
        if self._is_in_head or (self.cycle is not None and not self.cycle.response_complete):
            self.registry.received(self, num_bytes)

    def send_400_response(self, msg: str) -> None:
        """Of what the parser refuses, and our own functions that it calls."""
        self._reject(self._refusal or InvalidHTTP())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_receiving = self._is_in_head = True
        self._head_bytes = self._wire_bytes = 0
        self.registry.request_began(self)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """NOTE: trailers come here too; nothing reads them."""
        self._num_small += 1
        if self._is_in_head:
            super().on_header(name, value)
            self._head_bytes += len(name) + len(value)
            if len(self.headers) > _MAX_HEADERS:
                self._refusal = HeaderTooLarge(max_bytes=self.registry.limits.max_head_bytes)
                raise self._refusal

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_small += len(body) < SMALL_BYTES

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        limits = self.registry.limits
        if self._head_bytes > limits.max_head_bytes:
            self._refusal = HeaderTooLarge(max_bytes=limits.max_head_bytes)
            raise self._refusal
        if len(self.pipeline) >= _MAX_PIPELINED or self.parser.get_method() == b"CONNECT":
            raise InvalidHTTP
        if self.parser.should_upgrade():
            return
        self.scope[RELEASE_KEY] = self._release  # type: ignore[literal-required]
        super().on_headers_complete()

    def read_without_upgrade(self, rest: bytes) -> None:
        """Read the request again from its head, without the offer. ``rest``: what came after the head."""
        head = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        head += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join([*head, b"", rest]))

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._is_receiving = False
        self.registry.request_arrived(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._running is None or self._running.response_complete:  # None was waiting for its end.
            self.registry.response_ended(self)
        if self._is_receiving and self.expect_100_continue:
            self.transport.close()  # The client may or may not send the body.

    def hold(self) -> None:
        self.flow.is_held = True
        self.flow.pause_reading()

    def resume(self) -> None:
        self.flow.is_held = False
        self.flow.resume_reading()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def pause_reading(self) -> None:
        """Until it is this connection's turn."""
        self.flow.is_waiting = True
        self.flow.pause_reading()

    def resume_reading(self) -> None:
        self.flow.is_waiting = False
        self.flow.resume_reading()

    def refuse(self, error: CodedError | None) -> None:
        """Close the connection, after an answer if its client waits for one."""
        self._is_refused = True
        self.resume()
        if error is None or not self._can_answer():
            self.transport.close()
            return
        self.transport.write(_answer(error))
        if self.cycle is not None:
            self._end(self.cycle)
        if not self._is_receiving:
            self.transport.close()
            return
        self._wire_bytes = 0
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _reject(self, error: CodedError) -> None:
        self.refuse(error)
        self.registry.refused(self)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """NOTE: where requests are pipelined, ``cycle`` of uvicorn is the last of them."""
        self._running = cycle
        cycle.scope[BODY_KEY] = ConnectionBody(cycle)  # type: ignore[literal-required]
        if cycle.scope["method"] != "HEAD":  # Which has no body.
            cycle.transport = JoinedHead(cycle)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    @staticmethod
    def _end(cycle: RequestResponseCycle) -> None:
        """Its client has disconnected."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _release(self) -> None:
        if not self.pipeline:
            self.registry.release(self)

    def _limit_read(self, num_bytes: int) -> None:
        """NOTE: asyncio's own limit of one read, 256 KiB, may hold ten thousand chunks."""
        self._read_bytes = self.transport.max_size = num_bytes  # type: ignore[attr-defined]

    def _can_answer(self) -> bool:
        """Whether nothing of another answer would be before or after it."""
        if self.pipeline:
            return False
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete or not (self._is_in_head or cycle.response_started)


def _answer(error: CodedError) -> bytes:
    body = error_body(error, Fields())
    head = (
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%b: %b\r\n\r\n",
        (len(body), REQUEST_ID_HEADER.lower().encode(), request_id_of(None).encode()),
    )
    return STATUS_LINE[status_of(error)] + head[0] % head[1] + body
