"""Triton's gRPC API for clients: requests for inference are adapted to the model, others pass as they are."""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import quote

from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset

from errors.api import InvalidAPIKey
from errors.coded_error import CodedError
from errors.triton_front import ClosedEndpoint, TooManyBytes, TooManyInferences
from runner.supervision.turns import FIRST_READ_BYTES, Turns
from runner.triton_server.front.answers import statuses_of
from runner.triton_server.front.grpc.calls import RESPONSE_HEAD, ClientCall, ClientCalls
from runner.triton_server.front.grpc.connection import HTTP2Connection
from runner.triton_server.front.grpc.inferences import Infer, StreamInfer
from runner.triton_server.front.grpc.reads import HEALTH, PassedCall, StatisticsCall
from runner.triton_server.grpc_wire import (
    OK,
    RESOURCE_EXHAUSTED,
    SERVICE,
    UNAVAILABLE,
    UNIMPLEMENTED,
    Headers,
    timeout_s,
)

_READ_METHODS = {
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig")
}
_INFER, _STREAM, _STATISTICS = "ModelInfer", "ModelStreamInfer", "ModelStatistics"
_MANAGEMENT_METHODS = {
    *("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"),
    *("SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
}
_METADATA = (b"traceparent", b"triton_grpc_error")
"""A client's metadata that its call needs. Deadlines are kept here: Triton would cancel the call."""
_MAX_CONNECTIONS = 1024
"""Limit of connections, of which each takes 12 KiB, most of it h2's."""
_MAX_UNREAD_BYTES = 1 << 20
_MAX_IDLE_FRAMES = 1000
"""Limit of frames a second that bring no request nearer to its end and that no answer caused."""
_MAX_REFUSALS = 1000
"""Limit of refusals a second; those for lack of room do not count."""
_REFUSAL_PARTS = 8
"""Cost of a refused request, in frames."""
_MAX_MESSAGES = 4
"""Number of messages of a connection that are processed before others have their turn."""
_FRAMES_PER_MESSAGE = 2
"""Frames that a request or an answer pays for: by each a client may open two windows."""
_MAX_MESSAGE_CHARACTERS = 4096
_SAFE = " !\"#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that gRPC does not percent-encode in its messages."""


@dataclass(eq=False)
class GRPCServer(ClientCalls):
    """All connections."""

    connections: "dict[GRPCConnection, None]" = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    def add(self, connection: "GRPCConnection") -> None:
        """Add a connection. Above the maximum the oldest idle one is closed; if none is idle, this one."""
        if len(self.connections) >= _MAX_CONNECTIONS:
            victim = next((each for each in self.connections if each.is_idle), connection)
            victim.abort()
            if victim is connection:
                return
            del self.connections[victim]  # It is lost only later, and others may be added before.
        self.connections[connection] = None

    def connection(self) -> "GRPCConnection":
        return GRPCConnection(self)

    def make_room(self) -> None:
        """End a call of the busiest connection if there are too many. Raises TooManyInferences (E1111)."""
        if len(self.open) < 2 * self.inferences.max_requests:
            return
        error = TooManyInferences(running=len(self.open))
        for connection in sorted(self.connections, key=lambda each: len(each.calls), reverse=True):
            if (call := connection.call_that_gives_way()) is not None:
                call.fail(error)
                return
        raise error


class GRPCConnection(HTTP2Connection):
    """One client."""

    def __init__(self, server: GRPCServer) -> None:
        super().__init__()
        self.server = server
        self.calls: dict[int, ClientCall] = {}
        self._share = server.inferences.budget.share(self._evict)
        self.read_bytes = FIRST_READ_BYTES
        self._undelivered: dict[ClientCall, None] = {}
        """Calls with messages that wait for this connection's turn."""
        self._idle_frames = 0
        self._refusals = 0
        self._since_s = 0.0
        self._paused_s = 0.0
        self._useless = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.pop(self, None)
        for stream in list(self.calls.values()):
            stream.disconnect()
        self.calls.clear()
        self._undelivered.clear()
        self._share.end()
        self.free()

    @property
    def is_idle(self) -> bool:
        return not self.calls

    def call_that_gives_way(self) -> ClientCall | None:
        """Return the last call that may be ended for others, if any."""
        return next((each for each in reversed(self.calls.values()) if each.gives_way), None)

    def abort(self) -> None:
        self._transport.abort()

    def read(self) -> None:
        if self.server.turns.has_time():
            self.read_frames()
        else:
            self.server.turns.wait(self)

    def read_frames(self) -> bool:
        is_complete = self._process_messages()
        if is_complete and not self.is_closing():
            is_complete = super().read_frames()
            is_complete = self._process_messages() and is_complete
        turns, useless, self._useless = self.server.turns, self._useless, 0
        if is_complete:
            self.read_bytes = turns.after_read(self, useless, self.read_bytes)
        else:
            turns.wait(self, useless)
        if self.arriving_bytes != self._share.num_bytes and not self.is_closing():
            try:
                self._share.hold(self.arriving_bytes)
            except TooManyBytes as exc:
                self._evict(exc)
        return is_complete

    def deliver(self, call: ClientCall, *, is_read: bool) -> None:
        if not is_read and not self._undelivered:  # Else it waits for its turn already.
            self.server.turns.wait(self)
        self._undelivered[call] = None

    def _process_messages(self) -> bool:
        """Process a few messages. False if others are left."""
        for _ in range(_MAX_MESSAGES):
            if (call := next(iter(self._undelivered), None)) is None:
                return True
            del self._undelivered[call]
            if call.take_next():
                self._undelivered[call] = None
        return not self._undelivered

    def _evict(self, error: TooManyBytes) -> None:
        self.abort()

    # What ``Turns`` pause and resume

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()
        self._paused_s = self._loop.time()

    def resume_reading(self) -> None:
        self._since_s += self._loop.time() - self._paused_s  # A flood that is read in turn counts alike.
        self._transport.resume_reading()
        self.read_frames()

    def on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            stream = self.calls.get(event.stream_id)
            if stream is None or not stream.receive(event.data):
                self._count_idle_frame()
        elif isinstance(event, RequestReceived):
            self._begin(event.stream_id, [(bytes(name), bytes(value)) for name, value in event.headers])
        elif isinstance(event, StreamEnded):
            if (stream := self.calls.get(event.stream_id)) is not None:
                stream.half_close()
        elif isinstance(event, StreamReset):
            self._count_idle_frame()
            if (stream := self.calls.pop(event.stream_id, None)) is not None:
                self._idle_frames += _FRAMES_PER_MESSAGE * stream.has_message
                stream.disconnect()
        elif isinstance(event, ConnectionTerminated):
            self.close()  # h2 sends nothing more.
        else:
            self._count_idle_frame()

    def on_ignored(self, num_frames: int) -> None:
        self._count_idle_frame(num_frames)

    def send(self, stream_id: int, message: bytes) -> None:
        self.send_message(stream_id, message)
        self._idle_frames -= _FRAMES_PER_MESSAGE
        if self.unread_bytes > _MAX_UNREAD_BYTES + len(message):
            self._transport.abort()

    def finish(self, stream_id: int, error: tuple[int, str], *, has_begun: bool) -> None:
        """End a call with a status and its message, and forget it."""
        status, text = error
        if status != OK:
            self.count_refusal(status)
        self.calls.pop(stream_id, None)
        trailers = [(b"grpc-status", b"%d" % status)]
        if text:
            trailers.append((b"grpc-message", quote(text[:_MAX_MESSAGE_CHARACTERS], safe=_SAFE).encode()))
        self.send_trailers(stream_id, trailers if has_begun else [*RESPONSE_HEAD, *trailers])

    def _begin(self, stream_id: int, headers: Headers) -> None:
        fields = dict(headers)
        path = fields.get(b":path", b"").decode("latin-1")
        method = path.removeprefix(f"{SERVICE}/") if path != HEALTH else path
        try:
            stream = self._stream(stream_id, method, fields)
        except CodedError as exc:
            self.finish(stream_id, (statuses_of(exc)[1], str(exc)), has_begun=False)
            return
        if stream is None:
            error = UNIMPLEMENTED, f"there is no method {path[:200]}"
            self.finish(stream_id, error, has_begun=False)
            return
        self.calls[stream_id] = stream
        if (timeout := timeout_s(fields.get(b"grpc-timeout", b""))) is not None:
            stream.end_within(timeout)

    def _stream(self, stream_id: int, method: str, fields: dict[bytes, bytes]) -> ClientCall | None:
        """Return the call; None for an unknown method. Raises a CodedError."""
        server = self.server
        if method != HEALTH and not server.keys.accept(fields.get(b"authorization", b"")):
            raise InvalidAPIKey
        server.make_room()
        metadata = [(name, fields[name]) for name in _METADATA if name in fields]
        if method in (_INFER, _STREAM):
            server.inferences.check_room(self)
            return (Infer if method == _INFER else StreamInfer)(self, stream_id, method, metadata)
        if method == _STATISTICS:
            return StatisticsCall(self, stream_id, method, metadata)
        if method in _MANAGEMENT_METHODS and not server.inferences.is_managed:
            raise ClosedEndpoint(endpoint=method)
        if method in _READ_METHODS or method in _MANAGEMENT_METHODS or method == HEALTH:
            return PassedCall(self, stream_id, method, metadata)
        return None

    def count_request(self) -> None:
        self._idle_frames -= _FRAMES_PER_MESSAGE

    def count_refusal(self, status: int) -> None:
        self._useless += _REFUSAL_PARTS
        self._idle_frames -= _FRAMES_PER_MESSAGE  # What the client has sent before it knows.
        if status not in (RESOURCE_EXHAUSTED, UNAVAILABLE):
            self._begin_second()
            self._refusals += 1
            if self._refusals > _MAX_REFUSALS:
                self.end_flood()

    def _count_idle_frame(self, num_frames: int = 1) -> None:
        self._begin_second()
        self._idle_frames += num_frames
        self._useless += num_frames
        if self._idle_frames > _MAX_IDLE_FRAMES:
            self.end_flood()

    def _begin_second(self) -> None:
        now_s = self._loop.time()
        if now_s - self._since_s > 1:
            self._since_s, self._idle_frames, self._refusals = now_s, 0, 0
