"""HTTP/1 on one connection, with bounds: of a request's head, its bytes on the wire, pipelined requests.

What exceeds a bound gets a coded answer as soon as that is known, and does not reach the application. A
request that offers to upgrade the connection (to HTTP/2, as Java's client does) is answered as any other.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import ASGIApp

from errors.api import BodyTooLarge, HeaderTooLarge, InvalidHTTP
from errors.coded_error import CodedError
from runner.http.connections import Connections
from runner.http.exchange import BUSY, EXCHANGE_KEY, Exchange, whole_answer
from runner.http.flow import FlowControl
from runner.http.rules import check_head, extra_headers, refusal_of, split_target
from runner.supervision.turns import FIRST_READ_BYTES, MAX_READ_BYTES, SMALL_BYTES, SMALL_PER_PART

_MAX_PIPELINED = 8
_MAX_HEADERS = 100
"""Number of headers. A small one takes 30 times its size in memory."""
_SLASHES = re.compile("//+")
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_WIRE_FACTOR = 2
"""Factor by which a chunked body may exceed the limit of bodies on the wire, framing included."""
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
"""Size of what is read after a refusal. NOTE: else the client's kernel may drop our answer."""


_HELD, _TURN = "there is no room", "it is not its turn"
Refusal = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body."""
WordRefusal = Callable[[CodedError, str], Refusal | None]
"""Function that words the answer to a refused request for a path; None: the client gets none."""


class _Parser(HttpRequestParser):
    """A parser. NOTE: httptools reads nothing after the head of a request that offers an upgrade."""

    def __init__(self, protocol: "HTTPConnection") -> None:
        super().__init__(protocol)
        # If a client sends more after ``connection: close``, its first request is answered.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._protocol = protocol

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except HttpParserUpgrade as exc:
            self._protocol.read_without_upgrade(data[exc.args[0] :])


class HTTPConnection(asyncio.Protocol):
    """One connection of a client, whose requests an ASGI application answers."""

    transport: asyncio.Transport
    flow: FlowControl
    buffered_bytes = 0
    _url = b""
    _expects_continue = False
    _is_receiving = False
    """True from the first byte of a request to its last."""
    _is_blank = False
    """True if the last read has only blank lines, before a request."""
    _is_in_head = False
    _head_bytes = 0
    _wire_bytes = 0
    _read_bytes = FIRST_READ_BYTES
    _num_small = 0
    """Number of lines of a head and small chunks in the last read."""
    _is_refused = False

    def __init__(self, application: ASGIApp, registry: Connections, word_refusal: WordRefusal) -> None:
        self._application = application
        self.registry = registry
        self._word_refusal = word_refusal
        self._loop = asyncio.get_running_loop()
        self._parser = _Parser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._last: Exchange | None = None
        """The exchange whose request is received, or was received last."""
        self._running: Exchange | None = None
        """The exchange whose answer is sent, or was sent last."""
        self._pipeline: deque[Exchange] = deque()
        """Exchanges that wait for its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._address = (transport.get_extra_info("sockname") or ())[:2]
        self.flow = FlowControl(transport)
        self._limit_read(FIRST_READ_BYTES)
        self.registry.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.closed(self)
        self.flow.resume_writing()
        unanswered = {self._last, self._running, *self._pipeline}
        self._pipeline.clear()
        self._last = self._running = None  # They refer to this connection, as does the parser.
        del self._parser
        for exchange in unanswered:
            if exchange is not None and not exchange.is_complete:
                exchange.disconnected()

    def shut_down(self) -> None:
        """Close the connection, once what was received is answered."""
        if self._last is None or self._last.is_complete:
            self.transport.close()
        else:
            self._last.keeps_alive = False

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._wire_bytes += len(data)
            if self._wire_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        self._num_small = 0
        self._is_blank = not self._is_receiving
        try:
            self._parser.feed_data(data)
        except HttpParserError as exc:  # What the parser refuses, and what our own functions below do.
            self._refuse_request(refusal_of(exc, data))
        num_useless = self._num_small // SMALL_PER_PART
        self._limit_read(self.registry.turns.after_read(self, num_useless, self._read_bytes))
        if not self._is_refused:
            self._count(len(data))

    def _count(self, num_bytes: int) -> None:
        limits = self.registry.limits
        self._wire_bytes += num_bytes
        if self._is_blank and self._wire_bytes > limits.max_head_bytes:
            self._refuse_request(HeaderTooLarge(max_bytes=limits.max_head_bytes))
            return
        if self._is_receiving:
            most_bytes = limits.max_head_bytes + _WIRE_FACTOR * limits.max_body_bytes + MAX_READ_BYTES
            if self._is_in_head and self._wire_bytes > limits.max_head_bytes:
                self._refuse_request(HeaderTooLarge(max_bytes=limits.max_head_bytes))
                return
            if self._wire_bytes > most_bytes:
                self._refuse_request(BodyTooLarge(max_bytes=limits.max_body_bytes))
                return
        if self._is_in_head or (self._last is not None and not self._last.is_complete):
            self.registry.received(self, num_bytes)

    def on_message_begin(self) -> None:
        self._url, self._headers, self._expects_continue = b"", [], False
        self._is_receiving = self._is_in_head = True
        self._is_blank = False
        self._head_bytes = self._wire_bytes = 0
        self._watch_arrival()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. NOTE: trailers come here too; nothing reads them."""
        self._num_small += 1
        if not self._is_in_head:
            return
        self._headers.append((name.lower(), value))
        self._head_bytes += len(name) + len(value)
        if len(self._headers) > _MAX_HEADERS:
            raise HeaderTooLarge(max_bytes=self.registry.limits.max_head_bytes)

    def on_headers_complete(self) -> None:
        parser = self._parser
        limits = self.registry.limits
        if self._head_bytes > limits.max_head_bytes:
            raise HeaderTooLarge(max_bytes=limits.max_head_bytes)
        method = parser.get_method()
        if len(self._pipeline) >= _MAX_PIPELINED:
            raise InvalidHTTP(reason=f"more than {_MAX_PIPELINED} wait on its connection")
        if method == b"CONNECT":
            raise InvalidHTTP(reason="this server is no proxy")
        if parser.should_upgrade():
            return
        http_version = parser.get_http_version()
        self._expects_continue = check_head(http_version, self._headers)
        target = split_target(method, self._url)
        self._is_in_head = False  # Only now: what is refused before leaves earlier requests their answers.
        if target.authority is not None:
            others = [each for each in self._headers if each[0] != b"host"]
            self._headers = [(b"host", target.authority), *others]
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": http_version,
            "server": self._address,
            "scheme": "http",
            "root_path": "",
            "headers": self._headers,
            "method": method.decode(),
            # Remove doubled slashes and one at the end, which come from base URLs.
            "path": _SLASHES.sub("/", target.path).rstrip("/") or "/",
            "raw_path": target.raw_path,
            "query_string": target.query,
        }
        exchange = scope[EXCHANGE_KEY] = Exchange(
            self,
            scope,
            is_absolute=target.authority is not None,
            keeps_alive=parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        self._last = exchange
        if self._running is None or self._running.is_complete:
            self._start(exchange)
        else:
            self._pipeline.append(exchange)
            if len(self._pipeline) >= _MAX_PIPELINED // 2:
                self.flow.pause_reading(BUSY)

    def read_without_upgrade(self, rest: bytes) -> None:
        """Read the request again from its head, without the offer. ``rest``: what came after the head."""
        parser = self._parser
        head = [b"%b %b HTTP/%b" % (parser.get_method(), self._url, parser.get_http_version().encode())]
        head += [b"%b: %b" % (name, value) for name, value in self._headers if name != b"upgrade"]
        self._parser = _Parser(self)
        self._parser.feed_data(b"\r\n".join([*head, b"", rest]))

    def on_body(self, body: bytes) -> None:
        self._num_small += len(body) < SMALL_BYTES
        if self._last is not None and not self._last.is_complete:
            self._last.received(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        if self._last is not None and not self._last.is_complete:
            self._last.received_all()
        self._is_receiving = self._is_blank = False
        self._wire_bytes = 0
        self.registry.request_arrived(self)
        if self._last is not None and self._last.is_complete:  # It was answered before it had arrived.
            self.registry.response_ended(self)

    def _watch_arrival(self) -> None:
        """Start the time of the request that is received, once all before it are answered."""
        is_running = self._running is not None and not self._running.is_complete
        if self._is_receiving and not self._pipeline and not (self._is_in_head and is_running):
            self.registry.request_began(self)

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        task = self._loop.create_task(exchange.run(self._application))
        self.registry.tasks.add(task)
        task.add_done_callback(self.registry.tasks.discard)

    def answered(self) -> None:
        """Give the next exchange of the pipeline its turn."""
        if not self.transport.is_closing():
            self.flow.resume_reading(BUSY)
            if self._pipeline:
                self._start(self._pipeline.popleft())
            self._watch_arrival()
        if self._running is None or self._running.is_complete:
            self.registry.response_ended(self)
            if self._is_receiving and self._expects_continue:
                self.transport.close()  # The client may or may not send the body.

    def hold(self) -> None:
        self.flow.pause_reading(_HELD)

    def resume(self) -> None:
        self.flow.resume_reading(_HELD)

    @property
    def unread_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def pause_reading(self) -> None:
        """Read nothing until it is this connection's turn."""
        self.flow.pause_reading(_TURN)

    def resume_reading(self) -> None:
        self.flow.resume_reading(_TURN)

    def close_with(self, error: CodedError | None) -> None:
        """Close the connection, after an answer if its client waits for one."""
        self._is_refused = True
        self.resume()
        refusal = None if error is None else self._word_refusal(error, self._url.decode("latin-1"))
        if error is None or refusal is None or not self._can_answer():
            self.transport.close()
            return
        status, headers, body = refusal
        has_body = not (self._is_receiving and self._parser.get_method() == b"HEAD")
        headers = [*headers, *extra_headers(error)]
        self.transport.write(whole_answer(status, headers, body, has_body=has_body))
        if self._last is not None:
            self._last.disconnected()
        if not self._is_receiving:
            self.transport.close()
            return
        self._wire_bytes = 0
        self.transport.write_eof()
        self._loop.call_later(_LINGER_S, self.transport.abort)

    def _refuse_request(self, error: CodedError) -> None:
        """Refuse what was received; requests that came before it are still answered."""
        is_in_body = self._is_receiving and not self._is_in_head
        if is_in_body and self._pipeline:
            self._pipeline.pop().disconnected()
            self._last, is_in_body = (self._pipeline[-1] if self._pipeline else self._running), False
        if not is_in_body and self._last is not None and not self._last.is_complete:
            self._is_refused, self._last.keeps_alive = True, False
            self._is_receiving, self._wire_bytes = False, 0
            self.registry.request_arrived(self)
            return
        self.close_with(error)
        self.registry.refused(self)

    def release(self) -> None:
        if not self._pipeline:
            self.registry.release(self)

    def _limit_read(self, num_bytes: int) -> None:
        """Limit the next read: asyncio's limit, 256 KiB, may hold ten thousand chunks."""
        self._read_bytes = self.transport.max_size = num_bytes  # type: ignore[attr-defined]

    def _can_answer(self) -> bool:
        """Return True if an answer now would neither follow nor precede a part of another one."""
        if self._pipeline:
            return False
        last = self._last
        return last is None or last.is_complete or not (self._is_in_head or last.has_started)
