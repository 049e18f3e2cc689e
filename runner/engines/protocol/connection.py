"""A connection to the engine server, with the requests that run over it.

Messages are read from the connection at once, because all requests share it. So a stream buffers what its
reader has not taken: the tokens of one minute at most.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import cast

import msgspec

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import ClientStalled
from errors.triton import TritonTimeout
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.messages import (
    COLLECTION_S,
    Cached,
    Cancel,
    Failed,
    Finished,
    FromClient,
    LogProbs,
    Order,
    Output,
    Ready,
    Statistics,
    Submit,
    ToClient,
    Tokens,
)
from runner.engines.protocol.outlet import Outlet
from runner.engines.protocol.received_stream import ReceivedStream
from runner.engines.protocol.wire import FrameQueue, FrameTooLong, decode_frames

_TOKEN_BYTES = 4
_STALL_TIMEOUT_S = 60.0
"""Longest time that a reader may leave tokens in the buffer."""
_CHECKS_PER_TIMEOUT = 10
_RELEASE_S = 0.02
_WHO = "The engine server"


class Connection(asyncio.Protocol):
    """One connection with its streams."""

    def __init__(
        self,
        timeout_s: float,
        engine_kind: str,
        coalescing: Coalescing | None,
        on_ready: Callable[[Ready], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._engine_kind = engine_kind
        self._coalescing = coalescing
        self._on_ready = on_ready
        self._releasing: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._data = bytearray()
        self._has_sent = False
        self._unsent = FrameQueue()
        """Further messages of this iteration of the event loop, which are sent together."""
        self._decoder: msgspec.msgpack.Decoder[list[ToClient]] = msgspec.msgpack.Decoder(list[ToClient])
        self._ids = itertools.count(1)
        self._streams: dict[int, ReceivedStream] = {}
        self._orders: dict[int, asyncio.Future[None]] = {}
        self._checking: asyncio.TimerHandle | None = None
        self.is_ready = False
        """True while the engine is loaded and the connection is open."""
        self.ready: Ready | None = None
        self.statistics: Statistics | None = None
        self.alive_s = 0.0
        """Time when the last ``Ready`` or ``Statistics`` arrived, by ``monotonic``."""
        self.disconnected = asyncio.Event()

    def open(self, submit: Submit, outlet: Outlet[Output] | None) -> tuple[int, ReceivedStream]:
        request_id = next(self._ids)
        self._send(msgspec.structs.replace(submit, request_id=request_id))
        stream = ReceivedStream(self._loop.time(), coalescing=self._coalescing, outlet=outlet)
        self._streams[request_id] = stream
        return request_id, stream

    def cancel(self, request_id: int) -> None:
        """Cancel the request, unless it has ended. Its stream ends once the engine server has answered."""
        if not self._streams[request_id].is_ended:
            self._send(Cancel(request_id))

    def close_stream(self, request_id: int) -> None:
        """Remove the stream, and cancel the request if it has not ended."""
        stream = self._streams.pop(request_id)
        if not stream.is_ended and not self.disconnected.is_set():
            self._send(Cancel(request_id))

    async def order(self, order: Order) -> None:
        """Send the order and wait for its end. Raises its error, or E2107."""
        request_id = next(self._ids)
        self._orders[request_id] = self._loop.create_future()
        self._send(msgspec.structs.replace(order, request_id=request_id))
        try:
            await self._orders[request_id]
        finally:
            self._orders.pop(request_id, None)

    def _end_order(self, request_id: int, error: CodedError | None) -> None:
        if (end := self._orders.get(request_id)) is None or end.done():
            return
        if error is None:
            end.set_result(None)
        else:
            end.set_exception(error)

    def close(self) -> None:
        """Close the connection; all streams end with E2107."""
        self._transport.abort()
        self._disconnect("the connection was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass.
        self._check_streams()

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            self._receive_all()
        except (msgspec.MsgspecError, FrameTooLong, UnicodeDecodeError, RecursionError) as exc:
            # After a malformed frame nothing can be read from the connection any more.
            self._data.clear()
            self._transport.abort()
            self._disconnect(f"malformed message: {exc}")

    def connection_lost(self, error: Exception | None) -> None:
        self._disconnect(str(error) if error else "its connection was closed")

    def _receive_all(self) -> None:
        now_s = self._loop.time()
        find = self._streams.get
        arrived: list[ReceivedStream] = []
        is_holding = False
        if self._coalescing is not None:
            self._coalescing.measure(len(self._streams), now_s)
        for messages in decode_frames(self._data, self._decoder):
            for message in messages:
                match message:
                    case Tokens(new=new):
                        for request_id, tokens in new:
                            if (stream := find(request_id)) is not None:
                                is_holding |= stream.receive(tokens, now_s)
                                arrived.append(stream)
                    case Finished(request_id=request_id):
                        if (stream := find(request_id)) is not None:
                            stream.finish(message, now_s)
                        else:
                            self._end_order(request_id, None)
                    case Failed(request_id=request_id, error=error):
                        if (stream := find(request_id)) is not None:
                            stream.fail(error.restore())
                        else:
                            self._end_order(request_id, error.restore())
                    case LogProbs(new=values):
                        for request_id, log_probs in values:
                            if (stream := find(request_id)) is not None:
                                stream.output.log_probs += log_probs
                    case Cached(new=counts):
                        for request_id, count, *prompt_tokens in counts:
                            if (stream := find(request_id)) is not None:
                                stream.output.cached_tokens = count
                                stream.output.prompt_tokens = next(iter(prompt_tokens), None)
                    case Statistics():
                        self.alive_s, self.statistics = time.monotonic(), message
                    case Ready():
                        self.is_ready, self.ready = True, message
                        self.alive_s = time.monotonic()
                        self._on_ready(message)
        # NOTE: last, so that a stream's last tokens go out together with its end.
        for stream in arrived:
            stream.deliver(now_s)
        if is_holding and self._releasing is None:
            self._releasing = self._loop.call_later(_RELEASE_S, self._release)

    def _release(self) -> None:
        """Release tokens that were held and got no later ones in time. Runs while some are held."""
        now_s = self._loop.time()
        held = [stream for stream in self._streams.values() if stream.held_until_s]
        for stream in held:
            stream.release(now_s)
        self._releasing = self._loop.call_later(_RELEASE_S, self._release) if held else None

    def _disconnect(self, reason: str) -> None:
        if self.disconnected.is_set():
            return
        self.disconnected.set()
        self.is_ready = False
        if self.ready is not None and self.ready.is_asleep:  # An engine that is started again is awake.
            self.ready = msgspec.structs.replace(self.ready, is_asleep=False)
            self._on_ready(self.ready)
        if self._checking is not None:
            self._checking.cancel()
        for stream in self._streams.values():
            stream.fail(EngineCrashed(engine_kind=self._engine_kind, reason=reason))
        for request_id in self._orders:
            self._end_order(request_id, EngineCrashed(engine_kind=self._engine_kind, reason=reason))

    def _check_streams(self) -> None:
        """Fail streams that had no answer, or a stalled reader, for too long. Runs periodically."""
        now_s = self._loop.time()
        for request_id, stream in self._streams.items():
            if stream.is_ended:
                continue
            if stream.received_s < now_s - self._timeout_s - COLLECTION_S:
                silent = TritonTimeout(who=_WHO, timeout_s=self._timeout_s, reason="it sent no token")
                self._abandon(request_id, stream, silent)
            elif stream.has_output and stream.unread_s < now_s - _STALL_TIMEOUT_S:
                waiting_bytes = _TOKEN_BYTES * len(stream.output.tokens)
                error = ClientStalled(waiting_bytes=waiting_bytes, timeout_s=_STALL_TIMEOUT_S)
                self._abandon(request_id, stream, error)
        interval_s = min(self._timeout_s, _STALL_TIMEOUT_S) / _CHECKS_PER_TIMEOUT
        self._checking = self._loop.call_later(interval_s, self._check_streams)

    def _abandon(self, request_id: int, stream: ReceivedStream, error: CodedError) -> None:
        """Cancel now, because a stalled reader may not return for a long time."""
        self._send(Cancel(request_id))
        stream.fail(error)

    def _send(self, message: FromClient) -> None:
        """Send the first message of an iteration of the event loop at once, the others together."""
        self._unsent.add(message)
        if not self._has_sent:
            self._has_sent = True
            self._loop.call_soon(self._flush)
            self._transport.write(self._unsent.take())

    def _flush(self) -> None:
        self._has_sent = False
        while data := self._unsent.take():
            self._transport.write(data)
