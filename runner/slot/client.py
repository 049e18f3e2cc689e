"""The runner's way to the slot's own socket: requests out, answers in, many at once over one connection.

Faster than ``runner.triton_server.client`` and as strict: a stream ends with its last answer or with a coded
error: E2101 (silence), E2105 (the connection is gone), E1009 (nobody takes what arrives), or the slot's own.

What arrives is taken off the connection at once, for it is everybody's. So a stream holds what its reader has
not taken: the tokens of a minute at most, and never more than the request's own.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from errors.coded_error import CodedError
from errors.requests import ClientStalled
from errors.triton import TritonMalformedEvent, TritonMalformedJSON, TritonTimeout, TritonUnavailable
from runner.engines.protocol.events import Event
from runner.engines.protocol.wire import frame
from runner.slot.protocol import Answer, Answers, Ask, Leave

_LENGTH = struct.Struct("<I")
_TOKEN_BYTES = 4
_STALL_TIMEOUT_S = 60.0
"""How long a reader may take nothing of what waits for it."""
_WATCHES_PER_TIMEOUT = 10
_MOST_FRAME_BYTES = 1 << 28
_QUOTED_BYTES = 100


class _NotAFrame(ValueError):
    """What the slot sent is longer than any answer."""


class _Stream:
    """What has arrived of one request and is not taken yet."""

    __slots__ = ("error", "events", "heard_s", "is_ended", "unread_s", "waiter")

    def __init__(self, now_s: float) -> None:
        self.events: list[Event] = []
        self.error: CodedError | None = None
        self.is_ended = False
        self.heard_s = now_s
        self.unread_s = now_s
        """When the first of ``events`` came, if there are any."""
        self.waiter: asyncio.Future[None] | None = None

    def hear(self, event: Answer, now_s: float) -> None:
        self.heard_s = now_s
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
        """All that has arrived, waiting for the first. Raises what the stream failed with, after the rest."""
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
        self._is_in_round = False
        self._unsent: list[bytes] = []
        """Further frames of this round of the loop: sent together, for sending each costs as much as all."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Answers)
        self._ids = itertools.count(1)
        self._streams: dict[int, _Stream] = {}
        self._watch: asyncio.TimerHandle | None = None
        self.is_closed = False

    def open(self, tensors: Mapping[str, Any]) -> tuple[int, _Stream]:
        request_id = next(self._ids)
        stream = self._streams[request_id] = _Stream(self._loop.time())
        packed = {**tensors, "input_ids": array("i", tensors["input_ids"]).tobytes()}
        self._send(Ask(request_id, packed))
        return request_id, stream

    def leave(self, request_id: int) -> None:
        """Nobody takes from the stream any more; the slot is told if it has not ended."""
        stream = self._streams.pop(request_id)
        if not stream.is_ended and not self.is_closed:
            self._send(Leave(request_id))

    def close(self) -> None:
        self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._watch_streams()

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            self._hear_all()
        except (msgspec.ValidationError, _NotAFrame) as exc:
            self._break_off(TritonMalformedEvent(event=str(exc)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self._break_off(TritonMalformedJSON(data=f"{bytes(self._data[:_QUOTED_BYTES])!r}: {exc}"))

    def _break_off(self, error: CodedError) -> None:
        """What comes after a frame that is none can't be read either."""
        self._data.clear()
        self.is_closed = True  # At once: the next request connects anew.
        for stream in self._streams.values():
            if not stream.is_ended:
                stream.fail(error)
        self._transport.abort()

    def _hear_all(self) -> None:
        buffer, start, now_s = self._data, 0, self._loop.time()
        while len(buffer) - start >= _LENGTH.size:
            size_bytes = _LENGTH.unpack_from(buffer, start)[0]
            if size_bytes > _MOST_FRAME_BYTES:
                raise _NotAFrame(f"a frame claims {size_bytes} bytes")
            end = start + _LENGTH.size + size_bytes
            if end > len(buffer):
                break
            for request_id, event in self._decoder.decode(buffer[start + _LENGTH.size : end]):
                stream = self._streams.get(request_id)
                if stream is not None and not stream.is_ended:
                    stream.hear(event, now_s)
            start = end
        del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        reason = str(error) if error else "the connection was closed"
        for stream in self._streams.values():
            if not stream.is_ended:
                stream.fail(TritonUnavailable(reason=reason))

    def _watch_streams(self) -> None:
        """From time to time: fail those of which nothing was heard, or taken, for too long."""
        now_s = self._loop.time()
        for request_id, stream in self._streams.items():
            if stream.is_ended:
                continue
            if stream.heard_s < now_s - self._timeout_s:
                self._abandon(request_id, stream, TritonTimeout(timeout_s=self._timeout_s))
            elif stream.events and stream.unread_s < now_s - _STALL_TIMEOUT_S:
                waiting_bytes = _TOKEN_BYTES * sum(len(event.tokens) for event in stream.events)
                error = ClientStalled(waiting_bytes=waiting_bytes, timeout_s=_STALL_TIMEOUT_S)
                self._abandon(request_id, stream, error)
        rest_s = min(self._timeout_s, _STALL_TIMEOUT_S) / _WATCHES_PER_TIMEOUT
        self._watch = self._loop.call_later(rest_s, self._watch_streams)

    def _abandon(self, request_id: int, stream: _Stream, error: CodedError) -> None:
        """Now, as its reader may not come back for long: the engine frees what the request holds."""
        self._send(Leave(request_id))
        stream.fail(error)

    def _send(self, message: Ask | Leave) -> None:
        """The first of a round of the loop at once, what else the round has together."""
        data = frame(self._encoder, message)
        if self._is_in_round:
            self._unsent.append(data)
            return
        self._is_in_round = True
        self._loop.call_soon(self._flush)
        self._transport.write(data)

    def _flush(self) -> None:
        self._is_in_round = False
        unsent, self._unsent = self._unsent, []
        if unsent:
            self._transport.write(b"".join(unsent))


class SlotClient:
    """One per process. ``down_reason`` tells why Triton is known to be away."""

    def __init__(
        self, path: Path, timeout_s: float, down_reason: Callable[[], str | None] = lambda: None
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._down_reason = down_reason
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
        self, inputs: Mapping[str, Any], headers: str = ""
    ) -> AsyncGenerator[list[Event], None]:
        """As ``TritonClient.generate``; nobody reads ``headers`` here."""
        if (reason := self._down_reason()) is not None:
            raise TritonUnavailable(reason=reason)
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = await self._connect()
        request_id, stream = connection.open(inputs)
        try:
            while not stream.is_ended or stream.events or stream.error:
                yield await stream.take()
        finally:
            connection.leave(request_id)

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
