"""The answer to an embedding request: one JSON document with a vector for each input."""

import asyncio
import base64
import math
from array import array
from collections.abc import Iterator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.coded_error import CodedError
from runner.api.call import Call, call_of
from runner.api.error_response import ErrorResponse, Fields
from runner.api.generation_response import GenerationService
from runner.api.limits import run_within
from runner.api.openai.answers import Embedding, Embeddings, EmbeddingUsage
from runner.api.openai.bodies import EmbeddingBody
from runner.generation.generation import Generation
from runner.generation.prompt_ids import PromptTokens
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing

_MOST_TOGETHER = 64
"""Number of inputs of a call that the engine has at a time, so that other calls have their turn."""
_PIECE_BYTES = 1 << 16
_FIELDS = Fields(prompt="input")
_encode = msgspec.json.Encoder().encode


class EmbeddingResponse(Response):
    """A response that embeds while it is sent. It has only the interface of Starlette's class."""

    def __init__(
        self,
        service: GenerationService,
        tokenizing: Tokenizing,
        body: EmbeddingBody,
        requests: list[GenerationRequest],
        model: str,
    ) -> None:
        """Initialize. ``requests``: one for each input."""
        self._service = service
        self._tokenizing = tokenizing
        self._is_base64 = body.encoding_format == "base64"
        self._dimensions = body.dimensions
        self._left = [*enumerate(requests)]
        self._left.reverse()  # The next one is the last.
        self._vectors = [b""] * len(requests)
        self._model = model
        self._running: set[Generation] = set()
        self._prompt_tokens = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, call = self._service, call_of(scope)
        call.model = self._model
        count = min(len(self._left), _MOST_TOGETHER, service.text_limit.limit)
        try:
            with service.text_limit.admit(count):
                await run_within(self._embed_all(count, call), call, service.timeout_s, self._fail)
        except ClientDisconnect:
            return  # There is nothing to answer.
        except CodedError as exc:
            await ErrorResponse(exc, _FIELDS)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # NOTE: send it piece by piece, as numbers take many times the memory of the vectors.
        for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # Other calls have their turn.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _embed_all(self, count: int, call: Call) -> None:
        """Embed the inputs, ``count`` at a time. The first error of one ends all."""
        if call.is_large:
            await self._tokenize()
        call.is_generating = True
        workers: list[asyncio.Task[None]] = []
        try:
            for _ in range(count):
                workers.append(asyncio.create_task(self._work(call)))
                await asyncio.sleep(0)  # Other calls have their turn, as each input may be tokenized here.
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)

    async def _tokenize(self) -> None:
        """Keep the token ids of the inputs in place of the body, which is released when the first is sent."""
        tokens = PromptTokens()
        for place, (index, request) in enumerate(self._left):
            ids = await request.prompt_ids.get(self._tokenizing)
            tokens.add(len(ids))
            self._left[place] = index, replace(request, prompt=array("I", ids))
            await asyncio.sleep(0)  # Other calls have their turn.

    async def _work(self, call: Call) -> None:
        while self._left:
            index, request = self._left.pop()
            generation = self._service.generate(request, call)
            del request  # It may be large.
            self._running.add(generation)
            async with aclosing(generation.text()) as texts:
                async for _ in texts:
                    pass  # There is none.
            self._running.discard(generation)
            self._prompt_tokens += generation.input_token_count
            self._vectors[index] = self._cut(generation.embedding or b"")

    def _fail(self, error: CodedError) -> None:
        for generation in self._running:
            generation.fail(error)

    def _cut(self, vector: bytes) -> bytes:
        """Return the first numbers of a vector, if the request asks for fewer, as a vector of length 1."""
        numbers = _numbers(vector)
        if self._dimensions in (None, len(numbers)):
            return vector
        kept = numbers[: self._dimensions]
        length = math.hypot(*kept) or 1.0
        return bytes(array("f", (each / length for each in kept)))

    def _pieces(self) -> Iterator[bytes]:
        """Yield the answer's JSON, which is ``Embeddings``."""
        head, tail = _encode(
            Embeddings("list", [], self._model, EmbeddingUsage(self._prompt_tokens, self._prompt_tokens))
        ).split(b"[]", 1)
        piece = head + b"["
        for index, vector in enumerate(self._vectors):
            if len(piece) > _PIECE_BYTES:
                yield piece
                piece = b""
            text = base64.b64encode(vector).decode() if self._is_base64 else None
            answer = Embedding(index, _numbers(vector) if text is None else text)
            piece += (b"," if index else b"") + _encode(answer)
        yield piece + b"]" + tail


def _numbers(vector: bytes) -> list[float]:
    return memoryview(vector).cast("f").tolist()  # type: ignore[return-value]
