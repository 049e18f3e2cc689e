"""The connection to Triton's gRPC API: as much of HTTP/2 as gRPC needs.

Triton is trusted: it is our child and listens on loopback. The library h2 would take half of the time of a
call here. HTTP/2: https://www.rfc-editor.org/rfc/rfc9113, its headers: https://www.rfc-editor.org/rfc/rfc7541
"""

import asyncio
import struct
from urllib.parse import unquote

from hpack import Decoder
from hpack.hpack import encode_integer

from errors.triton import TritonUnavailable
from errors.triton_front import InvalidInference
from runner.supervision.turns import MAX_READ_BYTES
from runner.triton_server.grpc_client.call import WINDOW_BYTES, OnEnd, OnMessage, TritonCall
from runner.triton_server.grpc_wire import FRAME_HEAD, UNAVAILABLE, Headers

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW, _MAX_FRAME = 4, 5
"""Settings."""
_CANCEL = 8
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DEFAULT_WINDOW_BYTES = (1 << 16) - 1
_MAX_STREAM_ID = (1 << 31) - (1 << 20)
"""Last id of a connection, after a billion calls; then another is opened."""
_MAX_HEADERS_BYTES = 1 << 20
_INDEXED = 0x7F
"""Headers whose bytes are all greater are references to a table, and leave it as it is."""


class TritonConnection(asyncio.BufferedProtocol):
    def __init__(self, authority: str) -> None:
        self._fields = [
            *((b":method", b"POST"), (b":scheme", b"http"), (b":authority", authority.encode())),
            *((b"te", b"trailers"), (b"content-type", b"application/grpc")),
        ]
        self._heads: dict[str, bytes] = {}
        """Encoded, by path."""
        self._transport: asyncio.Transport
        self._is_lost = False
        self._calls: dict[int, TritonCall] = {}
        self._next_id = 1
        self._unsent = b""
        """Headers of a call whose first message follows at once."""
        self._rest = b""
        self._credit_bytes = WINDOW_BYTES
        """How much Triton may still send."""
        self.initial_window_bytes = _DEFAULT_WINDOW_BYTES
        self._window_bytes = _DEFAULT_WINDOW_BYTES
        self._max_frame_bytes = 1 << 14
        self._blocked: dict[TritonCall, None] = {}
        """Calls that wait for a window, in order."""
        self._decoder = Decoder(_MAX_HEADERS_BYTES)
        self._statuses: dict[bytes, tuple[int, str]] = {}
        """Status and message of encoded headers, while the decoder's table stays as it is."""
        self._buffer = memoryview(bytearray(MAX_READ_BYTES))
        self._headers = b""
        """Headers that are not complete yet."""
        self._ends_stream = False

    @property
    def is_open(self) -> bool:
        """True while the connection takes further calls."""
        return not self._is_lost and self._next_id < _MAX_STREAM_ID

    # Calls

    def begin(self, path: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> TritonCall:
        """Begin a call. Raises InvalidInference (E1107) for long metadata."""
        if (block := self._heads.get(path)) is None:
            block = self._heads[path] = _encoded([(b":path", path.encode()), *self._fields])
        block += _encoded(metadata)
        if len(block) > self._max_frame_bytes:
            raise InvalidInference(reason=f"its metadata has more than {self._max_frame_bytes} bytes")
        call = self._calls[self._next_id] = TritonCall(self, self._next_id, on_message, on_end)
        self._next_id += 2
        self._unsent += _frame(_HEADERS, _END_HEADERS, call.stream_id, block)
        return call

    def send_from(self, call: TritonCall) -> None:
        """Send as much as Triton's windows allow."""
        if call.stream_id not in self._calls:
            return
        frames = []
        while call.unsent or call.is_last:
            window = max(min(call.window_bytes, self._window_bytes), 0)
            size = min(len(call.unsent), self._max_frame_bytes, window)
            if call.unsent and not size:
                self._blocked[call] = None
                break
            is_end = call.is_last and size == len(call.unsent)
            frames.append(
                _frame(_DATA, _END_STREAM if is_end else 0, call.stream_id, bytes(call.unsent[:size]))
            )
            del call.unsent[:size]
            call.window_bytes -= size
            self._window_bytes -= size
            call.is_closed = is_end
            call.is_last = call.is_last and not is_end
        if frames:
            self.write(b"".join(frames))

    def remove(self, call: TritonCall) -> bool:
        """Remove the call. Return False if it was already removed."""
        self._blocked.pop(call, None)
        is_there = self._calls.pop(call.stream_id, None) is not None
        if not self._calls and not self.is_open:
            asyncio.get_running_loop().call_soon(self._transport.close)
        return is_there

    def reset(self, call: TritonCall) -> None:
        if self.remove(call):
            self.write(_frame(_RESET, 0, call.stream_id, _NUMBER.pack(_CANCEL)))

    def open_window(self, stream_id: int, credit_bytes: int) -> int:
        """Let Triton send a whole window again, of a call or (0) of all; how much that is."""
        self.write(_frame(_WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(WINDOW_BYTES - credit_bytes)))
        return WINDOW_BYTES

    def write(self, data: bytes) -> None:
        unsent, self._unsent = self._unsent, b""
        if not self._transport.is_closing():
            self._transport.write(unsent + data)

    def close(self) -> None:
        self._transport.abort()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = _SETTING.pack(_INITIAL_WINDOW, WINDOW_BYTES)
        more = _NUMBER.pack(WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self.write(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW_UPDATE, 0, 0, more))

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        lost = TritonUnavailable(reason=str(error) if error else "it closed the connection")
        for stream_id in list(self._calls):
            self._end(stream_id, UNAVAILABLE, str(lost))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._rest + self._buffer[:nbytes]
        start, end = 0, len(data)
        while end - start >= FRAME_HEAD.size:
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, start)
            content = start + FRAME_HEAD.size
            stop = content + (high << 8) + low
            if stop > end:
                break
            if kind == _DATA:
                self._credit_bytes -= stop - content
                if (call := self._calls.get(stream_id)) is not None:
                    call.receive(data[content:stop])
            else:
                self._receive(kind, flags, stream_id, data[content:stop])
            start = stop
        self._rest = data[start:]
        if self._credit_bytes < WINDOW_BYTES // 2:
            self._credit_bytes = self.open_window(0, self._credit_bytes)

    # Frames

    def _receive(self, kind: int, flags: int, stream_id: int, content: bytes) -> None:
        if kind in (_HEADERS, _CONTINUATION):
            if kind == _HEADERS:
                self._ends_stream = bool(flags & _END_STREAM)
            self._headers += content
            if flags & _END_HEADERS:
                headers, self._headers = self._headers, b""
                status, message = self._status_of(headers)
                if self._ends_stream:
                    # NOTE: Triton ends a call whose request it can't parse several times.
                    self._end(stream_id, status, message)
        elif kind == _WINDOW_UPDATE:
            self._open_window(stream_id, _NUMBER.unpack(content)[0])
        elif kind == _RESET:
            self._end(stream_id, UNAVAILABLE, f"Triton reset the call ({_NUMBER.unpack(content)[0]})")
        elif kind == _SETTINGS and not flags & _ACK:
            self._change(dict(_SETTING.iter_unpack(content)))
        elif kind == _PING and not flags & _ACK:
            self.write(_frame(_PING, _ACK, 0, content))
        elif kind == _GOAWAY:
            self._transport.close()

    def _status_of(self, headers: bytes) -> tuple[int, str]:
        if (known := self._statuses.get(headers)) is not None:
            return known
        fields = dict(self._decoder.decode(headers, raw=True))
        message = unquote(fields.get(b"grpc-message", b"").decode("latin-1"))
        status = int(fields.get(b"grpc-status", b"2")), message
        if all(byte > _INDEXED for byte in headers):
            self._statuses[headers] = status
        else:
            self._statuses.clear()
        return status

    def _open_window(self, stream_id: int, more_bytes: int) -> None:
        if not stream_id:
            self._window_bytes += more_bytes
            self._send_blocked()
        elif (call := self._calls.get(stream_id)) is not None:
            call.window_bytes += more_bytes
            self.send_from(call)

    def _change(self, settings: dict[int, int]) -> None:
        initial_bytes = settings.get(_INITIAL_WINDOW, self.initial_window_bytes)
        for call in self._calls.values():
            call.window_bytes += initial_bytes - self.initial_window_bytes
        self.initial_window_bytes = initial_bytes
        self._max_frame_bytes = settings.get(_MAX_FRAME, self._max_frame_bytes)
        self.write(_frame(_SETTINGS, _ACK, 0, b""))
        self._send_blocked()

    def _send_blocked(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for call in blocked:
            self.send_from(call)

    def _end(self, stream_id: int, status: int, message: str) -> None:
        call = self._calls.get(stream_id)
        if call is not None and self.remove(call):
            call.end(status, message)


def _frame(kind: int, flags: int, stream_id: int, content: bytes) -> bytes:
    length = len(content)
    return FRAME_HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + content


def _encoded(fields: Headers) -> bytes:
    """Encode literals without indexing, which need no table."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), 7)) + text
