"""The answer to a generation request: one JSON document, or a stream of server-sent events."""

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.api import InternalError
from errors.coded_error import CodedError
from runner.api.call import Call, call_of
from runner.api.error_response import ErrorResponse, Fields
from runner.api.generations import Generations, Piece, PromptRequest
from runner.api.idle_streams import IdleStreams
from runner.api.limits import Admitted, TextLimit, run_within
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest
from runner.http.exchange import Exchange

Generate = Callable[[GenerationRequest, Call], Generation]
"""Function that makes the generation of one text of a call."""
COMMENT = b": keep-alive\n\n"
"""An event without a field, which clients of event streams ignore."""
Prepare = Callable[[], Awaitable[Sequence[PromptRequest]]]

_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Without it nginx buffers the events.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class GenerationService:
    """A generation service, within the limits of this server."""

    generate: Generate
    text_limit: TextLimit
    timeout_s: float
    idle_streams: IdleStreams


class AnswerWriter(Protocol):
    """A writer of one call's answer: the bytes of a document, or of a stream of server-sent events."""

    response_id: str
    model: str
    fields: Fields
    idle_event: bytes
    """The event for a silent stream, maybe before the first events. Clients ignore it."""

    def document(self, texts: Sequence[Sequence[Piece]], generations: Generations) -> bytes:
        """Return the whole answer: all pieces of each text."""

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        """Return the events of these pieces. The first call opens the stream."""

    def last_events(self, generations: Generations) -> bytes:
        """Return the events that end a complete stream."""

    def error_events(self, error: CodedError) -> bytes:
        """Return the events that end a stream with an error, so that it never looks complete."""


class GenerationResponse(Response):
    """A response that is generated while it is sent. It has only the interface of Starlette's class."""

    def __init__(
        self,
        service: GenerationService,
        num_texts: int,
        prepare: Prepare,
        writer: AnswerWriter,
        *,
        is_stream: bool,
    ) -> None:
        """Initialize. ``prepare`` makes the requests, one for each prompt; it runs once they are admitted."""
        self._service = service
        self._num_texts = num_texts
        self.prepare = prepare
        self.model = writer.model
        self._writer = writer
        self._is_stream = is_stream
        self._send: Send
        self._connection: Exchange | None = None
        self._has_started = False
        self.silent_checks = 0.0
        self._generations: Generations | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        call = call_of(scope)
        call.model, call.response_id = self.model, self._writer.response_id
        call.is_whole = not self._is_stream
        self._send, self._connection = send, call.connection
        response: Response | None
        try:
            with service.text_limit.admit(self._num_texts) as admitted:
                answer = self._generate(call, admitted)
                response = await run_within(answer, call, service.timeout_s, self._fail)
        except ClientDisconnect:
            return  # There is nothing to answer.
        except CodedError as exc:
            if self._has_started:
                await self._end_with(exc, call)
                return
            response = ErrorResponse(exc, self._writer.fields)
        except Exception:
            if self._has_started:
                await self._end_with(InternalError(), call)
            raise
        if response is not None:
            await response(scope, receive, send)

    async def _end_with(self, error: CodedError, call: Call) -> None:
        call.error = error
        await self._write(self._writer.error_events(error), is_last=True)

    async def _generate(self, call: Call, admitted: Admitted) -> Response | None:
        """Generate. Return the whole answer; None if it was streamed."""
        if not self._is_stream:
            return await self._whole(await self._begin(call))
        self._service.idle_streams.watch(self)
        try:
            generations = await self._begin(call)
            last = await self._stream(generations)
        finally:
            self._service.idle_streams.leave(self)
        # NOTE: release before the answer ends: the client's next request must not be refused for this one.
        admitted.release()
        await self._write(last + self._writer.last_events(generations), is_last=True)
        return None

    async def _begin(self, call: Call) -> Generations:
        prepare = self.prepare
        del self.prepare  # It holds the body, which may be large: the texts may take long.
        generations = Generations()
        await generations.add(await prepare(), lambda request: self._service.generate(request, call))
        call.is_generating = True
        self._generations = generations
        return generations

    def _fail(self, error: CodedError) -> None:
        if self._generations is not None:
            self._generations.fail(error)

    async def _whole(self, generations: Generations) -> Response:
        pieces: dict[int, list[Piece]] = defaultdict(list)

        def put(batch: list[Piece]) -> bool:
            for piece in batch:
                pieces[piece.index].append(piece)
            return True

        async with aclosing(generations.batches(Outlet(lambda: True, put))) as batches:
            async for batch in batches:
                put(batch)
        document = self._writer.document([pieces[index] for index in sorted(pieces)], generations)
        return Response(document, media_type="application/json")

    async def _stream(self, generations: Generations) -> bytes:
        """Send all events but the last, and return these.

        NOTE: the response starts with the first piece, or when the stream was idle for too long: an error
        before that still has its own status.
        """
        connection, writer, last = self._connection, self._writer, b""

        def put(batch: list[Piece]) -> bool:
            if connection is not None and (events := writer.events(batch, generations)):
                self.silent_checks = 0.0
                connection.write(events)
            return True

        outlet = None
        if connection is not None:
            outlet = Outlet(lambda: self._has_started and connection.is_ready(), put)
        async with aclosing(generations.batches(outlet)) as batches:
            async for batch in batches:
                events = writer.events(batch, generations)
                if batch[-1].finish_reason is not None and generations.are_over:
                    last += events
                elif events:
                    await self._write(events)
        return last

    async def keep_alive(self) -> None:
        """Send an event without meaning, if the client reads and no other is being written."""
        if self._connection is None or self._connection.is_ready():
            await self._write(self._writer.idle_event)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Write events, which are sent together if they are written together."""
        self.silent_checks = -math.inf  # No ``keep_alive`` while this waits for the client.
        if not self._has_started:
            self._has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self.silent_checks = 0.0
