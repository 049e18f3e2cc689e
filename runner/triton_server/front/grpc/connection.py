"""One HTTP/2 connection of a client with gRPC messages: the library h2 on asyncio."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings

from runner.supervision.turns import MAX_READ_BYTES
from runner.triton_server.grpc_wire import FRAME_HEAD, Headers, prefixed

_MAX_HEADERS_BYTES = 1 << 14
"""Limit of the headers of one request or answer, uncompressed."""
_OWN_SETTINGS = {
    SettingCodes.MAX_CONCURRENT_STREAMS: 1024,
    SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADERS_BYTES,
}
_MAX_EVENTLESS_BYTES = 3 << 14
"""Limit of bytes without an event: a frame of 16 KiB, and headers in several frames."""
_PART_BYTES = 1024
"""Size of a part that waits, with its stream, besides its data."""
_BUFFER = bytearray(MAX_READ_BYTES)
"""Memory into which all connections read, and which is used at once. It is small, as frames can have 9 bytes,
and their number blocks the event loop."""
_CLOSE_TIMEOUT_S = 5.0
_PREFACE_BYTES = 24
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_LONG_BYTES = 256
"""Data that is worth the work of its frame."""
_HEADERS_WORK = 4
_FIELD_BYTES = 16
"""Headers of a frame that are as much work as a frame: each byte may be a field of its own."""
_STREAMS_WORK = 256
"""Number of streams that cost as much as a frame: h2 goes through all of them for headers and settings."""
_MAX_WORK = 64
"""Number of frames that h2 reads before other connections have their turn."""
_MAX_TABLE_BYTES = 1 << 12
"""Size of the table of headers that are sent to a client: its default."""
_MAX_SETTINGS = 64
"""Limit of a client's different settings: h2 keeps also unknown ones, in 100 times their size."""


@dataclass(slots=True)
class _Part:
    data: bytes = b""
    trailers: Headers | None = None
    """Sent instead of data, at the end."""

    @property
    def size_bytes(self) -> int:
        return _PART_BYTES + len(self.data)


class _H2(H2Connection):
    MAX_CLOSED_STREAMS = 1 << 12
    """Number of closed streams that h2 remembers; its default may take megabytes."""


class HTTP2Connection(ABC, asyncio.BufferedProtocol):
    """A connection whose subclasses handle events. Data is sent once per iteration of the event loop."""

    def __init__(self) -> None:
        self._h2 = _H2(H2Configuration(client_side=False, header_encoding=None))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._is_flushing = False
        self._eventless_bytes = 0
        self._arrived = b""
        """Frames that wait for their turn, or a part of a frame's head."""
        self._frame_bytes = _PREFACE_BYTES
        """The rest of the last frame that was begun."""
        self._data_bytes = 0
        """The length of that frame, if it is one of data that is worth its work."""
        self._small_frames = 0
        """Frames that h2 has not read, or gave no event for, except headers and long data."""
        self.read_bytes = MAX_READ_BYTES
        self._waiting: dict[int, deque[_Part]] = {}
        """Parts of each stream that wait until the receiver's window has room."""
        self.unsent_bytes = 0
        """Number of bytes in ``_waiting``."""

    # Interface of subclasses

    @abstractmethod
    def on_event(self, event: Event) -> None: ...

    @abstractmethod
    def on_ignored(self, num_frames: int) -> None:
        """Count small frames for which there is no event, as those of streams that are closed."""

    # For subclasses

    @property
    def unread_bytes(self) -> int:
        """Number of bytes in this process that the other side has not read."""
        return self.unsent_bytes + self._transport.get_write_buffer_size()

    def send_message(self, stream_id: int, message: bytes) -> None:
        self._send(stream_id, _Part(prefixed(message)))

    def send_trailers(self, stream_id: int, trailers: Headers) -> None:
        self._send(stream_id, _Part(trailers=trailers))

    def send_headers(self, stream_id: int, headers: Headers) -> None:
        with suppress(ProtocolError):  # It is closed.
            self._h2.send_headers(stream_id, headers)
            self._flush_soon()

    @property
    def arriving_bytes(self) -> int:
        """Number of bytes of incomplete frames, and of headers whose later frames have not come."""
        return self._eventless_bytes + len(self._arrived)

    def free(self) -> None:
        """Free memory once it is lost. NOTE: h2's objects refer to each other, until a garbage collection."""
        self._arrived = b""
        self._h2.incoming_buffer = FrameBuffer(server=True)
        vars(self._h2).pop("_frame_dispatch_table", None)

    def end_flood(self) -> None:
        """Tell the client that it sends too many useless frames, and close the connection."""
        if self._transport.is_closing():
            return
        with suppress(ProtocolError):  # It is closed.
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        self._flush()
        self.close()

    def close(self) -> None:
        """Close after sending what was written, or without if the other side does not read."""
        self._transport.close()
        self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.local_settings = Settings(self._h2.config.client_side, _OWN_SETTINGS)
        self._h2.decoder.max_header_list_size = _MAX_HEADERS_BYTES
        self._h2.initiate_connection()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(_BUFFER)[: self.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived += memoryview(_BUFFER)[:nbytes]
        self.read()

    def read(self) -> None:
        """Read what has arrived, now or when it is this connection's turn."""
        self.read_frames()

    def read_frames(self) -> bool:
        """Read frames of limited work. False if others are left, which the next call reads."""
        data, work = self._arrived, 0
        end = min(self._frame_bytes, len(data))
        self._frame_bytes -= end
        while is_complete := len(data) - end >= FRAME_HEAD.size:
            if work >= _MAX_WORK:
                break
            high, low, kind, _, _ = FRAME_HEAD.unpack_from(data, end)
            length = (high << 8) + low
            work += self._work_of(kind, length)
            is_long = kind == _DATA and length >= _LONG_BYTES
            self._small_frames += not is_long and kind not in (_HEADERS, _CONTINUATION)
            self._data_bytes = FRAME_HEAD.size + length if is_long else 0
            end += FRAME_HEAD.size + length
            self._frame_bytes = max(end - len(data), 0)
        self._arrived = data[end:]
        if end:
            self.receive(data[:end])
        return not is_complete

    def _work_of(self, kind: int, length: int) -> int:
        """Return how many frames without content are as much work as a frame."""
        if kind in (_HEADERS, _SETTINGS):
            own = _HEADERS_WORK + length // _FIELD_BYTES if kind == _HEADERS else 1
            return own + len(self._h2.streams) // _STREAMS_WORK
        if kind == _CONTINUATION:
            return 1 + length // _FIELD_BYTES
        return int(kind != _DATA or length < _LONG_BYTES)

    def receive(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._flush()
            self.close()
            return
        self._eventless_bytes = 0 if events else self._eventless_bytes + len(data)
        if self._data_bytes:  # NOTE: what was under way of a call that was refused brings no event.
            self._eventless_bytes = min(self._eventless_bytes, self._data_bytes - self._frame_bytes)
        if self._eventless_bytes > _MAX_EVENTLESS_BYTES:  # Headers that never end.
            self._transport.abort()
        is_pending = self._frame_bytes > 0 and not self._data_bytes  # The last frame is not complete.
        if (num_ignored := self._small_frames - is_pending - len(events)) > 0:
            self.on_ignored(num_ignored)
        self._small_frames = int(is_pending)
        opened: set[int | None] = set()
        for event in events:
            if self._transport.is_closing():
                return
            if isinstance(event, WindowUpdated):
                opened.add(event.stream_id or None)
            elif isinstance(event, RemoteSettingsChanged):
                opened.add(None)
                self._bound_settings()
            elif isinstance(event, StreamReset):
                self._drop_waiting(event.stream_id)
            elif isinstance(event, DataReceived) and event.flow_controlled_length:
                # What is received is bounded where it is kept.
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self.on_event(event)
        # NOTE: once per read: a read may open the windows of all streams a thousand times.
        for each in [None] if None in opened else opened:
            self._send_waiting(each)
        self._flush_soon()

    def _bound_settings(self) -> None:
        """Keep little of what a client sets."""
        if len(self._h2.remote_settings) > _MAX_SETTINGS:
            self._transport.abort()
        encoder = self._h2.encoder
        if encoder.header_table_size > _MAX_TABLE_BYTES:
            encoder.header_table_size = _MAX_TABLE_BYTES

    # Sending

    def _send(self, stream_id: int, part: _Part) -> None:
        if stream_id in self._waiting or not self._send_what_fits(stream_id, part):
            self._waiting.setdefault(stream_id, deque()).append(part)
            self.unsent_bytes += part.size_bytes
        self._flush_soon()

    def _send_what_fits(self, stream_id: int, part: _Part) -> bool:
        """Send as much as the receiver's window allows; ``part`` keeps the rest. False if there is a rest."""
        try:
            if part.trailers is not None:
                self._h2.send_headers(stream_id, part.trailers, end_stream=True)
                if not self._h2.streams[stream_id].closed:  # The client may send more: it need not.
                    self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
                return True
            window = self._h2.local_flow_control_window(stream_id)
            size = self._h2.max_outbound_frame_size
            data, sent = part.data, 0
            while len(data) - sent > min(window, size) > 0:
                piece = data[sent : sent + min(window, size)]
                self._h2.send_data(stream_id, piece)
                sent += len(piece)
                window -= len(piece)
            part.data = data[sent:] if sent else data
            if len(part.data) > window:
                return False
            self._h2.send_data(stream_id, part.data)
        except ProtocolError:
            pass  # The stream is closed.
        return True

    def _send_waiting(self, stream_id: int | None) -> None:
        for each in [stream_id] if stream_id else list(self._waiting):
            waiting = self._waiting.get(each)
            while waiting:
                self.unsent_bytes -= waiting[0].size_bytes
                if not self._send_what_fits(each, waiting[0]):
                    self.unsent_bytes += waiting[0].size_bytes
                    break
                waiting.popleft()
            else:
                self._waiting.pop(each, None)

    def _drop_waiting(self, stream_id: int | None) -> None:
        for part in self._waiting.pop(stream_id or 0, ()):
            self.unsent_bytes -= part.size_bytes

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if (data := self._h2.data_to_send()) and not self._transport.is_closing():
            self._transport.write(data)
