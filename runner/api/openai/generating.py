"""A generation request answered: as one JSON document, or as a stream of server-sent events."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.api.call import Call, call_of
from runner.api.error_response import Failure, Fields, error_body
from runner.api.generations import Piece, Texts
from runner.api.limits import Admission, ClientGone, run_within
from runner.api.openai.answers import Answer, Choice, Usage
from runner.api.openai.bodies import ChatBody, GenerationBody, StreamOptions
from runner.api.openai.formats import Shape
from runner.api.openai.guides import body_field
from runner.api.openai.requests import Order
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest

Generate = Callable[[GenerationRequest, Call], Generation]
"""Makes a generation of one text that a call asks for."""

_DONE = b"data: [DONE]\n\n"
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class Generating:
    """What generates, and within which bounds."""

    generate: Generate
    admission: Admission
    timeout_s: float

    def answer(self, body: GenerationBody, orders: Sequence[Order], shape: Shape, model: str) -> Response:
        """Raises E1005 for more texts than there is ever a place for."""
        self._check_count(body.n or 1, len(orders))
        return _Answering(self, body, orders, shape, model)

    def _check_count(self, n: int, num_prompts: int) -> None:
        most = self.admission.most
        if num_prompts > most:
            expected = f"at most {most} prompts (OPENAI_MAX_REQUESTS)"
            raise InvalidInput(name="prompt", expected=expected, value=num_prompts)
        if n * num_prompts > most:
            expected = f"so few that there are at most {most} texts in all (OPENAI_MAX_REQUESTS)"
            raise InvalidInput(name="n", expected=expected, value=n)


class _Answering(Response):
    """Generates while it is sent; of Starlette's class by its interface alone, which is being called."""

    def __init__(
        self, generating: Generating, body: GenerationBody, orders: Sequence[Order], shape: Shape, model: str
    ) -> None:
        self._generating = generating
        self._is_stream = bool(body.stream)
        options = body.stream_options or StreamOptions()
        self._wants_usage = options.include_usage
        self._wants_usage_always = options.continuous_usage_stats
        self._orders = orders
        self._shape = shape
        prompt_field = "messages" if isinstance(body, ChatBody) else "prompt"
        self._fields = Fields(prompt_field, body_field(body))
        self._model = model
        self._id = shape.id_prefix + secrets.token_hex(12)
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._generating
        call = call_of(scope)
        call.model, call.response_id = self._model, self._id
        stream = _EventStream(send, self._fields)
        response: Response | None
        try:
            with limits.admission.admitted(sum(order.count for order in self._orders)) as leave:
                call.is_generating = True
                texts = Texts(self._orders, lambda request: limits.generate(request, call))
                work = self._stream(texts, stream, leave) if self._is_stream else self._whole(texts)
                response = await run_within(work, receive, limits.timeout_s, texts.fail)
        except ClientGone:
            return
        except CodedError as exc:
            if stream.has_started:
                call.error = exc
                await stream.fail(exc)
                return
            response = Failure(exc, self._fields)
        if response is not None:
            await response(scope, receive, send)

    async def _whole(self, texts: Texts) -> Response:
        pieces: dict[int, list[Piece]] = defaultdict(list)
        async with aclosing(texts.batches()) as batches:
            async for batch in batches:
                for piece in batch:
                    pieces[piece.index].append(piece)
        choices = [self._shape.whole(pieces[index]) for index in sorted(pieces)]
        answer = self._answer(self._shape.whole_object, choices, texts.usage())
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _stream(self, texts: Texts, stream: _EventStream, leave: Callable[[], None]) -> None:
        """NOTE: begun with the first piece, so that what is refused before is an answer with its status."""
        opened: set[int] = set()
        no_usage = None if self._wants_usage else msgspec.UNSET
        async with aclosing(texts.batches()) as batches:
            async for batch in batches:
                events: list[Choice] = []
                for piece in batch:
                    if piece.index not in opened:
                        opened.add(piece.index)
                        events += filter(None, [self._shape.opening(piece.index)])
                    events.append(self._shape.event(piece))
                usage = texts.usage() if self._wants_usage_always else no_usage
                await stream.send(
                    [self._answer(self._shape.event_object, [event], usage) for event in events]
                )
        # NOTE: before the client can know that it is done, or what it asks next finds its own places taken.
        leave()
        if self._wants_usage:
            await stream.send([self._answer(self._shape.event_object, [], texts.usage())])
        await stream.end()

    def _answer(
        self, kind: str, choices: Sequence[Choice], usage: Usage | msgspec.UnsetType | None
    ) -> Answer[Choice]:
        return Answer(self._id, kind, self._created, self._model, list(choices), usage)


class _EventStream:
    """Server-sent events of one response; all that are sent together are one write."""

    def __init__(self, send: Send, fields: Fields) -> None:
        self._send = send
        self._fields = fields
        self._encode = msgspec.json.Encoder().encode
        self.has_started = False

    async def send(self, answers: Sequence[Answer[Choice]]) -> None:
        await self._write(b"".join([b"data: %b\n\n" % self._encode(answer) for answer in answers]))

    async def end(self) -> None:
        await self._write(_DONE, is_last=True)

    async def fail(self, error: CodedError) -> None:
        """End with an error: what came before is not the whole text, and no ``[DONE]`` says that it were."""
        await self._write(b"data: %b\n\n" % error_body(error, self._fields), is_last=True)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        if not self.has_started:
            self.has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
