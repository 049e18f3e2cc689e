"""Requests out of the bytes of one connection of HTTP/1.1: httptools, with a bound for everything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import httptools

from errors.coded_error import CodedError
from errors.triton_front import InvalidInference, RequestTooLarge
from runner.http.rules import RULED_HEADERS, check_head, refusal_of, split_target
from runner.supervision.turns import MAX_READ_BYTES, SMALL_BYTES
from runner.triton_server.front.budget import Share

_MAX_HEAD_BYTES = 1 << 14
_WIRE_FACTOR = 2
"""Bytes on the wire of a body in chunks, for each byte of the limit of bodies."""
_KEPT_HEADERS = {
    *(b"authorization", b"content-length", b"traceparent", b"inference-header-content-length"),
}
"""Of others only the bytes count: a small one takes 30 times its size in memory."""


@dataclass
class Request:
    """A request whose head has arrived, or all of it once it is given to the handler."""

    share: Share
    method: str = ""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """Those that are used. Names in lower case; of several with one name the last."""
    body: bytearray = field(default_factory=bytearray)
    ruled: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The headers of which all are checked."""
    path: str = ""
    expects_continue: bool = False
    keeps_alive: bool = False
    is_version_1_0: bool = False


class Receiver(Protocol):
    """Takes the requests of a connection. Each method may raise a CodedError."""

    def begin_request(self) -> Request:
        """The first byte of a request has arrived."""

    def take_head(self, request: Request) -> None:
        """Its body is to come."""

    def take(self, request: Request) -> None:
        """All of it has arrived."""


class RequestParser:
    def __init__(self, receiver: Receiver, max_body_bytes: int) -> None:
        self.arriving: Request | None = None
        self.is_in_head = True
        self.num_small = 0
        """Lines of a head and small chunks of the last read."""
        self._receiver = receiver
        self._max_body_bytes = max_body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._wire_bytes = 0
        """Of the request that arrives; the read in which it began does not count."""
        self._is_read_again = False
        """The head is read a second time: see ``_read_without_upgrade``."""

    def feed(self, data: memoryview) -> None:
        """Raises a CodedError for what is no request, exceeds a bound, or is refused by the receiver."""
        self._wire_bytes += len(data)
        self.num_small = 0
        try:
            self._parse(data)
        except httptools.HttpParserError as exc:
            raise refusal_of(exc, bytes(data)) from None
        self._check_wire()

    def stop(self) -> None:
        """Free what has arrived of a head. Nothing may be fed any more."""
        self._parser = None

    def close(self) -> None:
        """Let go of the receiver and of the request that arrives."""
        self.stop()
        self.arriving = None
        del self._receiver

    def _parse(self, data: memoryview) -> None:
        """An offer to upgrade the connection, as Java's client makes one, is left unused."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._read_without_upgrade()
            self._parse(data[exc.args[0] :])

    def _read_without_upgrade(self) -> None:
        """Read the head again without the offer, after which httptools would read no body."""
        request, old = self.arriving, self._parser
        assert request is not None
        version = old.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (old.get_method(), request.target, version)]
        lines += [b"%b: %b" % each for each in (*request.headers.items(), *request.ruled)]
        if not old.should_keep_alive():
            lines.append(b"connection: close")
        request.target, request.ruled = b"", []
        self._parser, self._is_read_again = httptools.HttpRequestParser(self), True
        self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _check_wire(self) -> None:
        if self.is_in_head:
            if self._wire_bytes > _MAX_HEAD_BYTES:
                raise RequestTooLarge(part="head", max_bytes=_MAX_HEAD_BYTES, remedy="send fewer headers")
        elif self._wire_bytes > _MAX_HEAD_BYTES + _WIRE_FACTOR * self._max_body_bytes + MAX_READ_BYTES:
            raise self._too_large()
        if self.arriving is not None:  # The parser keeps a header or trailer until its end.
            self.arriving.share.hold(self._wire_bytes)

    # httptools

    def on_message_begin(self) -> None:
        if not self._is_read_again:
            self.arriving = self._receiver.begin_request()
        self._is_read_again = False

    def on_url(self, piece: bytes) -> None:
        assert self.arriving is not None
        self.arriving.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        """NOTE: trailers of a body in chunks come here too; they are ignored."""
        self.num_small += 1
        name = name.lower()
        if not self.is_in_head:
            return
        assert self.arriving is not None
        if name in _KEPT_HEADERS:
            self.arriving.headers[name] = value
        elif name in RULED_HEADERS:
            self.arriving.ruled.append((name, value))

    def on_headers_complete(self) -> None:
        request = self.arriving
        assert request is not None
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            raise InvalidInference(reason="this server is no proxy")
        if self._parser.should_upgrade():
            return
        self.is_in_head = False
        request.method, request.is_version_1_0 = method.decode("latin-1"), version == "1.0"
        request.expects_continue = check_head(version, request.ruled)
        target = split_target(method, request.target)
        # A slash that is encoded separates nothing, and no name of Triton's has one.
        request.path = target.raw_path.decode() if b"%2f" in target.raw_path.lower() else target.path
        length = request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()
        self._receiver.take_head(request)

    def on_body(self, piece: bytes) -> None:
        request = self.arriving
        assert request is not None
        request.body += piece
        self.num_small += len(piece) < SMALL_BYTES
        if len(request.body) > self._max_body_bytes:
            raise self._too_large()
        request.share.hold(len(request.target) + len(request.body))

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        request = self.arriving
        assert request is not None
        request.share.is_complete = True
        self.arriving = None
        self.is_in_head = True
        self._wire_bytes = 0
        request.keeps_alive = self._parser.should_keep_alive()
        self._receiver.take(request)

    def _too_large(self) -> CodedError:
        remedy = "send less, or raise TRITON_MAX_BODY_BYTES"
        return RequestTooLarge(part="body", max_bytes=self._max_body_bytes, remedy=remedy)
