"""Client of Triton's gRPC API: one connection, many calls, results by callbacks.

Triton is trusted: it is our child and listens on loopback. A callback is cheaper than a task per response.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from urllib.parse import unquote

from h2.events import ConnectionTerminated, DataReceived, Event, StreamReset
from h2.settings import SettingCodes

from errors.api import InternalError
from errors.triton import TritonUnavailable
from runner.triton_server.front.grpc_wire import INTERNAL, OK, SERVICE, UNAVAILABLE, Headers, Messages
from runner.triton_server.front.http2 import HTTP2Connection, end_of

OnMessage = Callable[[bytes], None]
OnEnd = Callable[[int, str], None]
"""Takes the status and its message."""

_WINDOW_BYTES = (1 << 31) - 1
"""Of each stream, and of the connection: what a client does not read is bounded there."""
_MAX_STREAM_ID = (1 << 31) - (1 << 20)
"""A connection has a billion calls; then another is opened."""
_FRAME_HEAD = struct.Struct(">HBHI")
"""Of HTTP/2: the length in 24 bits, the kind and flags, the stream."""
_PLAIN_DATA = 0x0000
"""The kind DATA, without flags."""
_TRAILERS = 0x0105
"""The kind HEADERS, which are complete and end the stream."""
_WINDOW_UPDATE = struct.Struct(">HBHII")
_WINDOW_UPDATE_KIND = 0x0800
_MAX_MESSAGE_BYTES = 1 << 30
_CONNECT_TIMEOUT_S = 5.0
_FIELDS = [(b"te", b"trailers"), (b"content-type", b"application/grpc")]

log = logging.getLogger("cog_triton.triton_front")


class Call:
    """One call, until ``on_end`` was called or ``cancel`` returned."""

    def __init__(self, connection: _Connection, stream_id: int, on_message: OnMessage, on_end: OnEnd) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._messages = Messages(_MAX_MESSAGE_BYTES)
        self._on_message = on_message
        self._on_end = on_end

    def send(self, message: bytes, *, is_last: bool = False) -> None:
        self._connection.send_message(self._stream_id, message, is_last=is_last)

    def half_close(self) -> None:
        self._connection.half_close(self._stream_id)

    def cancel(self) -> None:
        """Triton forgets the call; see ``Stops`` of the slot for what it runs."""
        if self._connection.forget(self._stream_id):
            self._connection.reset(self._stream_id)

    def receive(self, data: bytes) -> None:
        try:
            for message in self._messages.feed(data):
                self._on_message(message)
        except Exception:  # Other calls go on.
            log.exception("an answer of Triton could not be passed on")
            self.cancel()
            self.end(INTERNAL, str(InternalError()))

    def end(self, status: int, message: str) -> None:
        try:
            self._on_end(status, message)
        except Exception:
            log.exception("the end of an answer of Triton could not be passed on")


class _Connection(HTTP2Connection):
    def __init__(self, authority: str) -> None:
        super().__init__(is_client=True)
        self._head = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":authority", authority.encode()),
        ]
        self._calls: dict[int, Call] = {}
        self._rest = b""
        self._credit_bytes = _WINDOW_BYTES
        self._is_lost = False

    @property
    def is_open(self) -> bool:
        """It takes further calls."""
        return not self._is_lost and self._h2.highest_outbound_stream_id < _MAX_STREAM_ID

    def settings(self) -> dict[SettingCodes, int]:
        return {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._h2.increment_flow_control_window(_WINDOW_BYTES - self._h2.inbound_flow_control_window)
        self._flush()

    def begin(self, path: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> Call:
        stream_id = self._h2.get_next_available_stream_id()
        call = self._calls[stream_id] = Call(self, stream_id, on_message, on_end)
        self.send_headers(stream_id, [*self._head, (b":path", path.encode()), *_FIELDS, *metadata])
        return call

    def forget(self, stream_id: int) -> bool:
        is_known = self._calls.pop(stream_id, None) is not None
        if not self._calls and not self.is_open:
            self._loop.call_soon(self._transport.close)
        return is_known

    def buffer_updated(self, nbytes: int) -> None:
        """Read plain DATA frames, which is nearly all that Triton sends, faster than h2 reads them."""
        data = self._rest + self.received(nbytes)
        start, end = 0, len(data)
        while end - start >= _FRAME_HEAD.size:
            high, low, kind, stream_id = _FRAME_HEAD.unpack_from(data, start)
            content = start + _FRAME_HEAD.size
            stop = content + (high << 8) + low
            if stop > end:
                break
            if kind == _TRAILERS and stream_id not in self._calls:
                # NOTE: Triton ends a call whose request it can't parse several times, and h2 would then close
                # the connection. The table of headers needs them all.
                self._h2.decoder.decode(data[content:stop])
            elif kind != _PLAIN_DATA:
                self.receive(data[start:stop])
            elif (call := self._calls.get(stream_id)) is not None:
                call.receive(data[content:stop])
            self._credit_bytes -= stop - content if kind == _PLAIN_DATA else 0
            start = stop
        self._rest = data[start:]
        if self._credit_bytes < _WINDOW_BYTES // 2:
            spent = _WINDOW_BYTES - self._credit_bytes
            self._transport.write(_WINDOW_UPDATE.pack(0, 4, _WINDOW_UPDATE_KIND, 0, spent))
            self._credit_bytes = _WINDOW_BYTES

    def on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.receive(event.data)
        elif isinstance(event, StreamReset):
            self._end(event.stream_id, UNAVAILABLE, f"Triton reset the call ({event.error_code})")
        elif isinstance(event, ConnectionTerminated):
            self._transport.close()
        elif (headers := end_of(event)) is not None:
            trailers = dict(headers)
            status = int(trailers.get(b"grpc-status", b"2"))
            text = unquote(trailers.get(b"grpc-message", b"").decode("latin-1"))
            self._end(event.stream_id, status, text)  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        lost = TritonUnavailable(reason=str(error) if error else "it closed the connection")
        for stream_id in list(self._calls):
            self._end(stream_id, UNAVAILABLE, str(lost))

    def close(self) -> None:
        self._transport.abort()

    def _end(self, stream_id: int, status: int, message: str) -> None:
        call = self._calls.get(stream_id)
        if call is not None and self.forget(stream_id):
            call.end(status, message)


class Triton:
    """Connects when there is something to send, and again after Triton was restarted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def connect(self) -> None:
        """Raises TritonUnavailable."""
        async with self._connecting:
            if self.is_connected:
                return
            loop = asyncio.get_running_loop()
            authority = f"127.0.0.1:{self._port}"
            try:
                _, self._connection = await asyncio.wait_for(
                    loop.create_connection(lambda: _Connection(authority), "127.0.0.1", self._port),
                    _CONNECT_TIMEOUT_S,
                )
            except (OSError, asyncio.TimeoutError) as exc:
                raise TritonUnavailable(reason=str(exc) or "no connection in time") from exc

    def begin(self, method: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> Call:
        """Begin a call of a method of Triton's service. Raises TritonUnavailable; see ``connect``."""
        return self.begin_path(f"{SERVICE}/{method}", metadata, on_message, on_end)

    def begin_path(self, path: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> Call:
        if self._connection is None or not self._connection.is_open:
            raise TritonUnavailable(reason="there is no connection to it")
        return self._connection.begin(path, metadata, on_message, on_end)

    async def ask(self, method: str, message: bytes) -> bytes:
        """A call with one message and one answer. Raises TritonUnavailable, or RefusedByTriton."""
        await self.connect()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        received: list[bytes] = []

        def on_end(status: int, text: str) -> None:
            if answer.done():
                return
            if status == OK and received:
                answer.set_result(received[0])
            elif status == UNAVAILABLE:
                answer.set_exception(TritonUnavailable(reason="its connection was lost"))
            else:
                answer.set_exception(RefusedByTriton(status, text))

        call = self.begin(method, [], received.append, on_end)
        call.send(message, is_last=True)
        try:
            return await answer
        finally:
            call.cancel()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class RefusedByTriton(Exception):
    """Triton's status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
