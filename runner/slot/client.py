"""Client of the slot's own socket: many concurrent requests over one connection.

Faster than ``runner.triton_server.client`` and as strict: a stream ends with its last answer or with a coded
error: E2101 (no answer in time), E2105 (the connection is lost), E1009 (the reader stalled), or an error of
the slot.

Answers are read from the connection at once, because all requests share it. So a stream buffers what its
reader has not taken: the tokens of one minute at most.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from errors.coded_error import CodedError
from errors.requests import ClientStalled
from errors.triton import TritonMalformedEvent, TritonMalformedJSON, TritonTimeout, TritonUnavailable
from runner.engines.protocol.events import Event
from runner.engines.protocol.wire import FrameTooLong, decode_frames, frame
from runner.slot.protocol import Answer, Answers, CancelRequest, StartRequest

_TOKEN_BYTES = 4
_STALL_TIMEOUT_S = 60.0
"""How long a reader may leave events in the buffer."""
_CHECKS_PER_TIMEOUT = 10
_MAX_FRAME_BYTES = 1 << 28
_QUOTED_BYTES = 100


@dataclass(slots=True, eq=False)
class _Stream:
    """The events of one request that its reader has not taken yet."""

    received_s: float
    unread_s: float = 0.0
    """When the first of ``events`` arrived, if there are any."""
    events: list[Event] = field(default_factory=list)
    error: CodedError | None = None
    is_ended: bool = False
    waiter: asyncio.Future[None] | None = None

    def receive(self, event: Answer, now_s: float) -> None:
        self.received_s = now_s
        if event.error is not None:
            self.fail(event.error.restore())
            return
        if event.output_ids is None:
            self.fail(TritonMalformedEvent(event="an answer without output_ids"))
            return
        if not self.events:
            self.unread_s = now_s
        self.events.append(event)
        self.is_ended = event.finish_reason is not None
        self._wake()

    def fail(self, error: CodedError) -> None:
        self.error = error
        self.is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[Event]:
        """All events that have arrived, at least one. Raises the stream's error after the last event."""
        while not self.events:
            if self.error is not None:
                raise self.error
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        events, self.events = self.events, []
        return events


class _Connection(asyncio.Protocol):
    """One connection with its streams."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._data = bytearray()
        self._has_sent = False
        self._unsent: list[bytes] = []
        """Further frames of this iteration of the event loop, which are sent together."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Answers)
        self._ids = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._checking: asyncio.TimerHandle | None = None
        self.is_closed = False

    def open(self, tensors: Mapping[str, Any]) -> tuple[int, _Stream]:
        request_id = next(self._ids)
        stream = self._streams[request_id] = _Stream(self._loop.time())
        packed = {**tensors, "input_ids": array("i", tensors["input_ids"]).tobytes()}
        self._send(StartRequest(request_id, packed))
        return request_id, stream

    def close_stream(self, request_id: int) -> None:
        """Forget the stream, and cancel the request if it has not ended."""
        stream = self._streams.pop(request_id)
        if not stream.is_ended and not self.is_closed:
            self._send(CancelRequest(request_id))

    def close(self) -> None:
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._check_streams()

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            self._receive_all()
        except (msgspec.ValidationError, FrameTooLong) as exc:
            self._fail_all(TritonMalformedEvent(event=str(exc)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self._fail_all(TritonMalformedJSON(data=f"{bytes(self._data[:_QUOTED_BYTES])!r}: {exc}"))

    def _fail_all(self, error: CodedError) -> None:
        """After a malformed frame nothing can be read from the connection any more."""
        self._data.clear()
        self.is_closed = True  # The next request opens a new connection.
        self._fail_streams(error)
        self._transport.abort()

    def _fail_streams(self, error: CodedError) -> None:
        for stream in self._streams.values():
            if not stream.is_ended:
                stream.fail(error)

    def _receive_all(self) -> None:
        now_s = self._loop.time()
        for answers in decode_frames(self._data, self._decoder, _MAX_FRAME_BYTES):
            for request_id, answer in answers:
                stream = self._streams.get(request_id)
                if stream is not None and not stream.is_ended:
                    stream.receive(answer, now_s)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._checking is not None:
            self._checking.cancel()
        self._fail_streams(TritonUnavailable(reason=str(error) if error else "the connection was closed"))

    def _check_streams(self) -> None:
        """Fail the streams without an answer, or with a stalled reader, for too long. Runs periodically."""
        now_s = self._loop.time()
        for request_id, stream in self._streams.items():
            if stream.is_ended:
                continue
            if stream.received_s < now_s - self._timeout_s:
                self._abandon(request_id, stream, TritonTimeout(timeout_s=self._timeout_s))
            elif stream.events and stream.unread_s < now_s - _STALL_TIMEOUT_S:
                waiting_bytes = _TOKEN_BYTES * sum(len(event.tokens) for event in stream.events)
                error = ClientStalled(waiting_bytes=waiting_bytes, timeout_s=_STALL_TIMEOUT_S)
                self._abandon(request_id, stream, error)
        interval_s = min(self._timeout_s, _STALL_TIMEOUT_S) / _CHECKS_PER_TIMEOUT
        self._checking = self._loop.call_later(interval_s, self._check_streams)

    def _abandon(self, request_id: int, stream: _Stream, error: CodedError) -> None:
        """Cancel now, because a stalled reader may not return for a long time."""
        self._send(CancelRequest(request_id))
        stream.fail(error)

    def _send(self, message: StartRequest | CancelRequest) -> None:
        """Send the first message of an iteration of the event loop at once, the others together."""
        data = frame(self._encoder, message)
        if self._has_sent:
            self._unsent.append(data)
            return
        self._has_sent = True
        self._loop.call_soon(self._flush)
        self._transport.write(data)

    def _flush(self) -> None:
        self._has_sent = False
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._transport.write(b"".join(unsent))


class SlotClient:
    """One per process."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> SlotClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_all()

    def end_all(self) -> None:
        """As ``TritonClient.end_all``."""
        if self._connection is not None:
            self._connection.close()

    async def generate(
        self, inputs: Mapping[str, Any], traceparent: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        """As ``TritonClient.generate``; ``traceparent`` is not used."""
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = await self._connect()
        request_id, stream = connection.open(inputs)
        try:
            while not stream.is_ended or stream.events or stream.error:
                yield await stream.take()
        finally:
            connection.close_stream(request_id)

    async def _connect(self) -> _Connection:
        async with self._connecting:
            connection = self._connection
            if connection is None or connection.is_closed:
                loop = asyncio.get_running_loop()
                try:
                    _, connection = await loop.create_unix_connection(
                        lambda: _Connection(self._timeout_s), str(self._path)
                    )
                except OSError as exc:
                    raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc
                self._connection = connection
            return connection
