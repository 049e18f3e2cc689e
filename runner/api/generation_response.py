"""The answer to a generation request: one JSON document, or a stream of server-sent events."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.api import InternalError
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.api.call import Call, call_of
from runner.api.error_response import ErrorResponse, Fields, error_body
from runner.api.generations import Generations, Piece, PromptRequest
from runner.api.limits import Admission, run_within
from runner.api.openai.answers import Answer, Choice, Usage
from runner.api.openai.bodies import ChatBody, GenerationBody, StreamOptions
from runner.api.openai.formats import Format
from runner.api.openai.guides import body_field
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest

Generate = Callable[[GenerationRequest, Call], Generation]
"""Makes the generation of one text of a call."""

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Without it nginx buffers the events.
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True)
class GenerationService:
    """What generates, within the limits of this server."""

    generate: Generate
    admission: Admission
    timeout_s: float


class GenerationResponse(Response):
    """Generates while it is sent. Of Starlette's class it uses the interface only: Starlette calls it."""

    def __init__(
        self,
        service: GenerationService,
        body: GenerationBody,
        num_prompts: int,
        prepare: Callable[[], Awaitable[Sequence[PromptRequest]]],
        formatter: Format,
        model: str,
    ) -> None:
        """``prepare`` makes the requests, one for each prompt; it runs once they are admitted.

        Raises E1005 for more texts than this server ever generates at once.
        """
        _check_count(body.n or 1, num_prompts, service.admission.limit)
        self._num_texts = (body.n or 1) * num_prompts
        self._service = service
        self._is_stream = bool(body.stream)
        self._options = body.stream_options or StreamOptions()
        self._prepare = prepare
        self._format = formatter
        prompt_field = "messages" if isinstance(body, ChatBody) else "prompt"
        self._fields = Fields(prompt_field, body_field(body))
        self._model = model
        self._id = formatter.id_prefix + secrets.token_hex(12)
        self._created = int(time.time())
        self._send: Send
        self._has_started = False
        self._generations: Generations | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        call = call_of(scope)
        call.model, call.response_id = self._model, self._id
        self._send = send
        response: Response | None
        try:
            with service.admission.admitted(self._num_texts) as release:
                answer = self._generate(call, release)
                response = await run_within(answer, receive, service.timeout_s, self._fail)
        except ClientDisconnect:
            return  # There is nothing to answer.
        except CodedError as exc:
            if self._has_started:
                await self._end_with(exc, call)
                return
            response = ErrorResponse(exc, self._fields)
        except Exception:
            if self._has_started:
                await self._end_with(InternalError(), call)
            raise
        if response is not None:
            await response(scope, receive, send)

    async def _end_with(self, error: CodedError, call: Call) -> None:
        """The last event of a stream. Without ``[DONE]``, as the text is not complete."""
        call.error = error
        await self._write(b"data: %b\n\n" % error_body(error, self._fields), is_last=True)

    async def _generate(self, call: Call, release: Callable[[], None]) -> Response | None:
        """The whole answer; None if it was streamed."""
        generations = await self._begin(call)
        call.is_generating = True
        self._generations = generations
        if not self._is_stream:
            return await self._whole(generations)
        await self._stream(generations, release)
        return None

    async def _begin(self, call: Call) -> Generations:
        prepare = self._prepare
        del self._prepare  # It holds the body, which may be large: the texts may take long.
        generations = Generations()
        await generations.add(await prepare(), lambda request: self._service.generate(request, call))
        return generations

    def _fail(self, error: CodedError) -> None:
        if self._generations is not None:
            self._generations.fail(error)

    async def _whole(self, generations: Generations) -> Response:
        pieces: dict[int, list[Piece]] = defaultdict(list)
        async with aclosing(generations.batches()) as batches:
            async for batch in batches:
                for piece in batch:
                    pieces[piece.index].append(piece)
        choices = [self._format.whole(pieces[index]) for index in sorted(pieces)]
        answer = self._answer(self._format.whole_object, choices, _usage(generations))
        return Response(_encode(answer), media_type="application/json")

    async def _stream(self, generations: Generations, release: Callable[[], None]) -> None:
        """NOTE: the response starts with the first piece: an error before that still has its own status."""
        opened: set[int] = set()
        no_usage = None if self._options.include_usage else msgspec.UNSET
        async with aclosing(generations.batches()) as batches:
            async for batch in batches:
                events: list[Choice] = []
                for piece in batch:
                    if piece.index not in opened:
                        opened.add(piece.index)
                        events += filter(None, [self._format.opening(piece.index)])
                    events.append(self._format.event(piece))
                usage = _usage(generations) if self._options.continuous_usage_stats else no_usage
                await self._write(b"".join([self._event([event], usage) for event in events]))
        # NOTE: before the client knows that it is done: its next request must not be refused for this one.
        release()
        if self._options.include_usage:
            await self._write(self._event([], _usage(generations)))
        await self._write(_DONE, is_last=True)

    def _event(self, choices: list[Choice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        return b"data: %b\n\n" % _encode(self._answer(self._format.event_object, choices, usage))

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Server-sent events: those that are written together are sent together."""
        if not self._has_started:
            self._has_started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def _answer(
        self, kind: str, choices: list[Choice], usage: Usage | msgspec.UnsetType | None
    ) -> Answer[Choice]:
        return Answer(self._id, kind, self._created, self._model, choices, usage)


def _check_count(n: int, num_prompts: int, limit: int) -> None:
    if num_prompts > limit:
        expected = f"at most {limit} prompts (OPENAI_MAX_REQUESTS)"
        raise InvalidInput(name="prompt", expected=expected, value=num_prompts)
    if n * num_prompts > limit:
        expected = f"so small that there are at most {limit} texts in all (OPENAI_MAX_REQUESTS)"
        raise InvalidInput(name="n", expected=expected, value=n)


def _usage(generations: Generations) -> Usage:
    prompt_tokens, output_tokens = generations.prompt_tokens, generations.output_tokens
    return Usage(prompt_tokens, output_tokens, prompt_tokens + output_tokens)
