"""The endpoints of the API."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.kinds import supports
from errors.chat import PromptOrMessages
from errors.coded_error import CodedError
from errors.engines import EngineAsleep
from runner.api.admin.endpoints import Admin, GiveOrder
from runner.api.body_reader import BodyReader
from runner.api.call import EMBEDDINGS_PATH, GENERATION_PATHS, RENDER, call_of
from runner.api.document import make_document
from runner.api.error_response import ErrorResponse, Fields
from runner.api.generation_response import Generate, GenerationResponse, GenerationService, Prepare
from runner.api.generations import PromptRequest
from runner.api.idle_streams import IdleStreams
from runner.api.limits import TextLimit, run_within
from runner.api.messages import to_chat as messages_to_chat
from runner.api.messages.answers import InputTokens
from runner.api.messages.bodies import CountTokensBody, MessagesBody
from runner.api.messages.writer import MessagesWriter
from runner.api.openai.answers import Model, Models, State, Text, Tokens
from runner.api.openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    GenerationBody,
    TokenizeBody,
)
from runner.api.openai.choices_writer import ChoicesWriter
from runner.api.openai.embeddings import EmbeddingResponse
from runner.api.openai.formats import ChatFormat, CompletionFormat, TokenTexts
from runner.api.openai.images import fetched, not_counted
from runner.api.openai.requests import (
    chat_prompt,
    chat_request,
    completion_requests,
    embedding_requests,
    num_prompts,
    num_texts,
)
from runner.api.page.response import page_routes
from runner.api.responses import to_chat as responses_to_chat
from runner.api.responses.answers import InputTokens as ResponseInputTokens
from runner.api.responses.bodies import ResponsesBody
from runner.api.responses.writer import ResponsesWriter
from runner.api.served import Served
from runner.engines.protocol.checks import check_task
from runner.observability.exposition import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from runner.api.routers.protocol import GeneratingEndpoint, RouterProtocol

_CHAT_THREADS = (4, 3)
"""Numbers of threads for chats and large chats, which wait there for other processes."""
_MANY_PROMPTS = 32

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Finish = Callable[[PromptRequest], Awaitable[PromptRequest]]


class API:
    """The endpoints. Each reads its body and returns an answer, or raises a CodedError."""

    def __init__(
        self,
        served: Served,
        is_engine_ready: Callable[[], Awaitable[bool]],
        generate: Generate,
        metrics_dir: Path,
        text_limit: TextLimit,
        give: GiveOrder | None = None,
        router: "RouterProtocol | None" = None,
    ) -> None:
        """Initialize. ``router``: what routers ask for, if it is offered."""
        settings = served.settings
        self._served = served
        self._metrics_dir = metrics_dir
        self._is_engine_ready = is_engine_ready
        self._bodies = BodyReader(settings)
        self._admin = Admin(served, self._bodies, give)
        self._router = router
        self._created = int(time.time())
        self._tokens = TokenTexts(served.model.tokenizer)
        self._chats = [ThreadPoolExecutor(count, "chat") for count in _CHAT_THREADS]
        self._exposition: asyncio.Task[str] | None = None
        self._timeout_s = settings.openai_timeout_s
        self._text_limit = text_limit
        limits_thinking = supports(served.engine_kind, "chat_guides")
        self._messages_to_chat = partial(messages_to_chat.chat_body, limits_thinking=limits_thinking)
        self._service = GenerationService(
            generate, self._text_limit, self._timeout_s, IdleStreams(settings.openai_stream_keep_alive_s)
        )

    def routes(self) -> list[Route]:
        """Return the routes. Answers that never change are ASGI applications themselves."""
        return [
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route(EMBEDDINGS_PATH, self.embeddings, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/responses/input_tokens", self.count_response_tokens, methods=["POST"]),
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.model),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/health", _json(State("ok")), methods=["GET"]),  # While this process answers.
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route("/openapi.json", _json(make_document(self._served)), methods=["GET"]),
            *self._admin.routes(),
            *(() if self._router is None else self._router.routes(self._generating(), self._run)),
            *page_routes(),
        ]

    def _generating(self) -> "dict[str, GeneratingEndpoint]":
        return {
            "/v1/chat/completions": self.chat_completions,
            "/v1/completions": self.completions,
            "/v1/responses": self.responses,
            "/v1/messages": self.messages,
        }

    async def chat_completions(self, request: Request) -> GenerationResponse:
        body = await self._read(request, ChatBody)
        model = self._served.find(body.model)

        async def prepare() -> list[PromptRequest]:
            finish = _finish_of(request)
            return [await finish(await self._with_template(chat_request, request, body))]

        formatter = ChatFormat(self._tokens, includes_reasoning=body.include_reasoning is not False)
        writer = ChoicesWriter(body, formatter, model)
        return self._generated(body, 1, prepare, writer)

    async def completions(self, request: Request) -> GenerationResponse:
        body = await self._read(request, CompletionBody)
        model = self._served.find(body.model)
        count = num_prompts(body.prompt)

        async def prepare() -> list[PromptRequest]:
            if call_of(request.scope).is_large or count > _MANY_PROMPTS:
                return await asyncio.to_thread(completion_requests, body, self._served)
            return completion_requests(body, self._served)

        writer = ChoicesWriter(body, CompletionFormat(self._tokens), model)
        return self._generated(body, count, prepare, writer)

    async def responses(self, request: Request) -> GenerationResponse:
        body = await self._read(request, ResponsesBody)
        model = self._served.find(body.model)
        is_large = call_of(request.scope).is_large
        prepare = self._preparing(request, body, responses_to_chat.chat_body)
        writer = ResponsesWriter(body, model, is_large=is_large)
        return GenerationResponse(self._service, 1, prepare, writer, is_stream=bool(body.stream))

    async def messages(self, request: Request) -> GenerationResponse:
        body = await self._read(request, MessagesBody)
        prepare = self._preparing(request, body, self._messages_to_chat)
        writer = MessagesWriter(self._served.find(body.model), messages_to_chat.fields_of(body))
        return GenerationResponse(self._service, 1, prepare, writer, is_stream=bool(body.stream))

    def _preparing(
        self, request: Request, body: B, chat_body: Callable[[B], ChatBody], finish: Finish | None = None
    ) -> Prepare:
        """Return a function that makes the request of a body by converting it with ``chat_body``."""
        finish = finish or _finish_of(request)

        def work(body: B, served: Served) -> PromptRequest:
            return chat_request(chat_body(body), served)

        async def prepare() -> list[PromptRequest]:
            return [await finish(await self._with_template(work, request, body))]

        return prepare

    async def count_tokens(self, request: Request) -> Response:
        body = await self._read(request, CountTokensBody)
        self._served.find(body.model)
        prepare = self._preparing(request, body, self._messages_to_chat, not_counted)
        return await self._counted(request, prepare, InputTokens, messages_to_chat.fields_of(body))

    async def count_response_tokens(self, request: Request) -> Response:
        body = await self._read(request, ResponsesBody)
        self._served.find(body.model)
        prepare = self._preparing(request, body, responses_to_chat.chat_body, not_counted)
        return await self._counted(request, prepare, ResponseInputTokens, responses_to_chat.fields_of(body))

    async def _counted(
        self, request: Request, prepare: Prepare, answer: Callable[[int], object], fields: Fields
    ) -> Response:
        """Answer how many tokens the prompt of the prepared request has."""

        async def count() -> int:
            (found,) = await prepare()
            prompt = cast(str, found.request.prompt)
            return len(await self._served.model.encode(prompt, adds_special_tokens=False))

        try:
            return _json(answer(await self._run(count(), request)))
        except CodedError as exc:
            return ErrorResponse(exc, fields)

    def _generated(
        self, body: GenerationBody, num_prompts: int, prepare: Prepare, writer: ChoicesWriter
    ) -> GenerationResponse:
        texts = num_texts(body, num_prompts, self._text_limit.limit)
        return GenerationResponse(self._service, texts, prepare, writer, is_stream=bool(body.stream))

    async def embeddings(self, request: Request) -> Response:
        body = await self._read(request, EmbeddingBody)
        model = self._served.find(body.model)
        if call_of(request.scope).is_large or num_prompts(body.input) > _MANY_PROMPTS:
            requests = await asyncio.to_thread(embedding_requests, body, self._served)
        else:
            requests = embedding_requests(body, self._served)
        return EmbeddingResponse(self._service, self._served.model.tokenizing, body, requests, model)

    async def models(self, request: Request) -> Response:
        names = self._served.models
        return _json(Models([self._model(name) for name in names], names[0], names[-1]))

    async def model(self, request: Request) -> Response:
        return _json(self._model(self._served.find(request.path_params["name"])))

    async def tokenize(self, request: Request) -> Response:
        body = await self._read(request, TokenizeBody)
        self._served.find(body.model)
        return _json(await self._run(self._encoded(body, request), request))

    async def _encoded(self, body: TokenizeBody, request: Request) -> Tokens:
        if (body.prompt is None) == (body.messages is None):
            raise PromptOrMessages(given="not both" if body.prompt is not None else "as there is neither")
        text, adds_special_tokens = body.prompt or "", body.add_special_tokens
        if body.messages is not None:
            text = await self._with_template(chat_prompt, request, body)
        if adds_special_tokens is None:
            adds_special_tokens = body.messages is None  # A chat template writes them itself.
        ids = await self._served.model.encode(text, adds_special_tokens=adds_special_tokens)
        return Tokens(len(ids), self._served.model.max_sequence_length, ids)

    async def _with_template(self, work: Callable[[B, Served], T], request: Request, body: B) -> T:
        """Run ``work``, which renders a chat, and return its result."""
        threads = self._chats[call_of(request.scope).is_large]
        return await asyncio.get_running_loop().run_in_executor(threads, work, body, self._served)

    async def detokenize(self, request: Request) -> Response:
        body = await self._read(request, DetokenizeBody)
        self._served.find(body.model)
        # NOTE: for many tokens this lets other threads run; ``decode`` does not.
        decode = self._served.model.tokenizer.decode_batch
        texts = asyncio.to_thread(decode, [body.tokens], skip_special_tokens=False)
        return _json(Text((await self._run(texts, request))[0]))

    async def _read(self, request: Request, kind: type[B]) -> B:
        """Read the body.

        Raises E1011, E1607 or E2114 before it is read if the server could do nothing with it now.
        """
        path = request.scope["path"]
        if path in GENERATION_PATHS:
            is_embedding = self._served.model.pooling is not None
            check_task(embeds=path == EMBEDDINGS_PATH, is_embedding=is_embedding)
            if self._served.engine.is_asleep:
                raise EngineAsleep
        self._text_limit.check(1)
        return await self._bodies.read(request, kind)

    async def _run(self, work: Coroutine[Any, Any, T], request: Request) -> T:
        """Run ``work``, which counts as a text. Raises E1607, E2601, ClientDisconnect."""
        with closing(work), self._text_limit.admit(1):
            return await run_within(work, call_of(request.scope), self._timeout_s)

    async def ready(self, request: Request) -> Response:
        """Answer 200 while the engine answers too and is awake, else 503."""
        status = "ready" if await self._is_engine_ready() else "not ready"
        if status == "ready" and self._served.engine.is_asleep:
            status = "asleep"
        return _json(State(status), 200 if status == "ready" else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of all processes of the runner, and Triton's."""
        if self._exposition is None or self._exposition.done():
            url = self._served.settings.triton_metrics_url
            more = None if self._router is None else self._router.families
            making = asyncio.to_thread(exposition, self._metrics_dir, url, more)
            self._exposition = asyncio.create_task(making)
        # One answer serves all clients that ask at the same time.
        return Response(await asyncio.shield(self._exposition), media_type=CONTENT_TYPE)

    def _model(self, name: str) -> Model:
        parent = None if self._served.adapter(name) is None else self._served.names[0]
        created_at = datetime.fromtimestamp(self._created, timezone.utc)
        length = self._served.model.max_sequence_length
        digest = self._served.digest(name) or msgspec.UNSET
        return Model(name, self._created, length, parent, name, created_at, digest)


def _finish_of(request: Request) -> Finish:
    """Return what becomes of the images of a request: their tokens can't be rendered."""
    return not_counted if request.scope["path"].endswith(RENDER) else fetched


def _json(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
