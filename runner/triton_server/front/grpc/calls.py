"""Calls of Triton's gRPC API: their messages on the way to Triton and back."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from errors.api import InternalError
from errors.coded_error import CodedError
from errors.triton_front import InvalidInference, RequestTooLarge, TooManyBytes
from runner.settings.api_keys import APIKeys
from runner.triton_server.front.answers import statuses_of
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.starts import Starts
from runner.triton_server.front.triton_http import TritonHTTP
from runner.triton_server.grpc_wire import (
    DEADLINE_EXCEEDED,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    Headers,
    Messages,
    TooLong,
)

_MAX_SMALL_BYTES = 1 << 16
"""Limit of a request that is not an inference."""
_MIN_DATA_BYTES = 256
"""Least data in a frame of a message that has further frames."""
_WAITING_BYTES = 64
"""Memory that a message takes besides its own bytes while it waits."""
_MAX_STATISTICS = 4
"""Limit of concurrent calls that read statistics."""
_MAX_REFUSED = 100
"""Number of refusals in a row after which a stream ends; those for lack of room do not count."""
_FIRST_MESSAGE_S = 60.0
"""Time in which the first message of a call has to arrive."""
RESPONSE_HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]

log = logging.getLogger("cog_triton.triton_front")


@dataclass(eq=False)
class ClientCalls:
    """The calls of all connections, and what they share."""

    inferences: Inferences
    triton_http: TritonHTTP
    keys: APIKeys
    is_engine_ready: Callable[[], bool]
    max_body_bytes: int
    statistics: Starts = field(default_factory=lambda: Starts(_MAX_STATISTICS))
    open: "dict[ClientCall, None]" = field(default_factory=dict)
    """The oldest first."""


class CallConnection(Protocol):
    @property
    def server(self) -> ClientCalls: ...
    def send_headers(self, stream_id: int, headers: Headers) -> None: ...
    def send(self, stream_id: int, message: bytes) -> None: ...
    def finish(self, stream_id: int, error: tuple[int, str], *, has_begun: bool) -> None: ...

    def count_request(self) -> None:
        """Count a request that was accepted."""

    def count_refusal(self, status: int) -> None:
        """Count a request that was answered with an error."""

    def deliver(self, call: "ClientCall", *, is_read: bool) -> None:
        """Call ``take_next`` of a call in this turn of the connection if it ``is_read``, else in the next."""


class ClientCall:
    """One call of a client. Messages wait for its connection's turn, and while Triton is being connected."""

    max_bytes = _MAX_SMALL_BYTES
    is_unary = True

    def __init__(self, connection: CallConnection, stream_id: int, method: str, metadata: Headers) -> None:
        self.connection = connection
        self.server = connection.server
        self.method = method
        self.metadata = metadata
        self._id = stream_id
        self._has_begun = False
        self._is_ended = False
        self._messages = Messages(self.max_bytes)
        self._share = self.server.inferences.budget.share(self._evict)
        self._held_bytes = 0
        self._waiting: deque[bytes | None] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._num_messages = 0
        self._refused = 0
        self.server.open[self] = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_FIRST_MESSAGE_S, self._is_late)
        self._deadline: asyncio.TimerHandle | None = None

    def end_within(self, timeout_s: float) -> None:
        """End the call after the client's deadline."""
        self._deadline = self._loop.call_later(timeout_s, self._exceed_deadline)

    # Hooks

    def message(self, message: bytes) -> None:
        """Take a message, once Triton is connected. Raises a CodedError."""
        raise NotImplementedError

    def ended_sending(self) -> None:
        """Take the end of the client's messages. Raises a CodedError."""

    def cancel(self) -> None:
        """Stop what runs: the client has disconnected."""

    @property
    def gives_way(self) -> bool:
        """Tell whether it may end so that another client can begin a call."""
        return True

    @property
    def has_message(self) -> bool:
        return self._num_messages > 0

    # From the connection

    def receive(self, data: bytes) -> bool:
        """Take data that arrived. Return False if it brought the request no nearer to its end."""
        if self._is_ended:
            return False
        try:
            messages = self._messages.feed(data)
            if messages:
                self._timer.cancel()
                self._held_bytes += sum(map(len, messages)) + _WAITING_BYTES * len(messages)
            self._share.is_complete = not self._messages.num_bytes
            self._share.hold(self._held_bytes + self._messages.num_bytes)
        except TooLong as exc:
            self.fail(self._too_long(exc.length))
            return False
        except TooManyBytes as exc:
            self.fail(exc)
            return False
        for message in messages:
            self._take(message)
        return bool(messages) or len(data) >= _MIN_DATA_BYTES

    def half_close(self) -> None:
        self._take(None)

    def take_next(self) -> bool:
        """Process what arrived first. Return True if more can be processed."""
        if self._is_ended or not self._waiting or self._connecting is not None:
            return False
        if not self.server.inferences.is_connected:
            self._connecting = asyncio.create_task(self._connect())
            return False
        self._process(self._waiting.popleft())
        return bool(self._waiting)

    def disconnect(self) -> None:
        if not self._is_ended:
            self._end_receiving()
            self.cancel()

    # For subclasses

    def respond(self, message: bytes) -> None:
        if self._is_ended:
            return
        self.release()
        if not self._has_begun:
            self._has_begun = True
            self.connection.send_headers(self._id, RESPONSE_HEAD)
        self.connection.send(self._id, message)

    def refuse(self, message: bytes, status: int) -> None:
        """Answer a request with an error, after which the call goes on."""
        self.connection.count_refusal(status)
        self.respond(message)
        self._refused += status not in (RESOURCE_EXHAUSTED, UNAVAILABLE)
        if self._refused > _MAX_REFUSED:
            self.finish(RESOURCE_EXHAUSTED, f"the last {_MAX_REFUSED} requests of the stream were refused")
            self.cancel()

    def hand_over(self, message: bytes) -> None:
        """Hold the bytes of a message no longer."""
        self._held_bytes = max(self._held_bytes - len(message) - _WAITING_BYTES, 0)
        self._share.hold(self._held_bytes + self._messages.num_bytes)

    def release(self) -> None:
        """Release what the call holds once Triton has begun to answer it."""
        self._held_bytes = 0
        self._share.release()

    def finish(self, status: int, text: str) -> None:
        if not self._is_ended:
            self._end_receiving()
            self.connection.finish(self._id, (status, text), has_begun=self._has_begun)

    def fail(self, error: CodedError) -> None:
        if not self._is_ended:
            self.finish(statuses_of(error)[1], str(error))
            self.cancel()

    def fail_unexpectedly(self) -> None:
        log.exception("a call of Triton's gRPC API failed")
        self.fail(InternalError())

    # Inside

    def _take(self, message: bytes | None) -> None:
        self._waiting.append(message)
        self.connection.deliver(self, is_read=True)

    def _process(self, message: bytes | None) -> None:
        try:
            if message is not None:
                self._num_messages += 1
            if self.is_unary and self._num_messages != 1:
                number = "no message" if message is None else "several messages"
                raise InvalidInference(reason=f"it has {number}")
            if message is not None:
                self.message(message)
                self.connection.count_request()
            else:
                self.ended_sending()
        except CodedError as exc:
            self.fail(exc)
        except Exception:  # noqa: BLE001 - other calls of the connection go on
            self.fail_unexpectedly()

    async def _connect(self) -> None:
        try:
            await self.server.inferences.connect()
        except CodedError as exc:
            self.fail(exc)
            return
        except Exception:  # noqa: BLE001 - it is logged
            self.fail_unexpectedly()
            return
        self._connecting = None
        if not self._is_ended:
            self.connection.deliver(self, is_read=False)

    def _end_receiving(self) -> None:
        self._is_ended = True
        self._waiting.clear()
        del self.server.open[self]
        self._timer.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
        self._share.end()
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()

    def _too_long(self, length: int | None) -> CodedError:
        if length is None:
            return InvalidInference(reason="it is compressed; send it uncompressed")
        remedy = "send less, or raise TRITON_MAX_BODY_BYTES"
        return RequestTooLarge(part="message", max_bytes=self.max_bytes, remedy=remedy)

    def _evict(self, error: TooManyBytes) -> None:
        self.fail(error)

    def _exceed_deadline(self) -> None:
        self.finish(DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.cancel()

    def _is_late(self) -> None:
        self.fail(InvalidInference(reason=f"it did not arrive within {_FIRST_MESSAGE_S:g} s"))


def parsed(message: bytes, kind: Any) -> Any:
    """Parse a message. Raises InvalidInference (E1107)."""
    try:
        return kind.FromString(message)
    except DecodeError as exc:
        raise InvalidInference(reason=f"it is not a {kind.DESCRIPTOR.name}") from exc
