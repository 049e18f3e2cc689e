"""Triton's HTTP API for clients: inference goes to Triton by gRPC, the rest to its HTTP server."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.types import Receive, Scope, Send

from errors.api import InvalidAPIKey
from errors.coded_error import CodedError
from errors.triton_front import ClosedEndpoint, InvalidInference
from runner.http.exchange import EXCHANGE_KEY, Exchange
from runner.http.rules import ALLOWED_METHODS
from runner.settings.api_keys import APIKeys
from runner.supervision.health import HTTPAnswer
from runner.supervision.json_bounds import JSONBounds
from runner.triton_server.front.answers import error_body, statuses_of
from runner.triton_server.front.http.answers import (
    JSON,
    Answer,
    Answered,
    InferAnswer,
    StreamAnswer,
    coded,
    too_large,
)
from runner.triton_server.front.inference import Inference, Inferences
from runner.triton_server.front.json_requests import generate_request, infer_request
from runner.triton_server.front.start import HEALTH_PATH
from runner.triton_server.front.triton_http import TritonHTTP

_NAME = r"([A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,199})"
_MODEL = rf"/v2/models/{_NAME}(?:/versions/([0-9]{{1,9}}))?"
_INFERENCE = re.compile(rf"{_MODEL}/(infer|generate|generate_stream)")
_READ = re.compile(rf"/v2|/v2/health/(?:live|ready)|{_MODEL}(?:/(?:ready|config))?")
_STATISTICS = re.compile(rf"/v2/models/stats|{_MODEL}/stats")
_READY = re.compile(rf"/v2/health/ready|{_MODEL}/ready")
_MANAGEMENT = re.compile(
    rf"/v2/repository/(?:index|models/{_NAME}/(?:load|unload))|/v2/logging|/v2/trace/setting|"
    rf"/v2/(?:system|cuda)sharedmemory(?:/region/{_NAME})?/(?:status|register|unregister)|"
    rf"{_MODEL}/trace/setting"
)
_OPEN_PATHS = (HEALTH_PATH, "/v2/health/live", "/v2/health/ready", "/metrics")
"""Paths that need no key."""
_NOT_OPENAI = "Not Found; the OpenAI-compatible API has a port of its own, OPENAI_PORT"
_MAX_MANAGEMENT_BYTES = 1 << 16
_MAX_DEPTH = 32
"""Limit of levels, as Triton's parser of JSON recurses."""
_BIG_BYTES = 1 << 17
"""Size above which bodies are read one after another, with pauses, so that other clients go on."""


@dataclass
class Request:
    """A request whose head has arrived."""

    exchange: Exchange
    receive: Receive
    method: str
    path: str
    headers: dict[bytes, bytes]
    """Names in lower case; the last one of several with a name."""

    @property
    def is_read(self) -> bool:
        return self.method in ("GET", "HEAD")


@dataclass(eq=False)
class Application:
    """Answers the requests of all clients."""

    inferences: Inferences
    triton: TritonHTTP
    keys: APIKeys
    is_engine_ready: Callable[[], bool]
    max_body_bytes: int
    _big: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(self._answer, scope, receive)

    async def metrics_port(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer on Triton's metrics port."""
        await self._run(self._answer_metrics, scope, receive)

    async def _run(
        self, answer: Callable[[Request], Awaitable[None]], scope: Scope, receive: Receive
    ) -> None:
        """Answer in this task, which ends when the client disconnects."""
        exchange: Exchange = scope[EXCHANGE_KEY]
        task = asyncio.current_task()
        assert task is not None
        exchange.on_disconnect = partial(_cancel, task)
        raw = scope["raw_path"].decode("latin-1")
        # A slash that is encoded separates nothing, and no name of Triton's has one.
        path = raw if "%2f" in raw.lower() else unquote(raw)
        try:
            await answer(Request(exchange, receive, scope["method"], path, dict(scope["headers"])))
        except Answered:
            pass
        except Exception as exc:  # noqa: BLE001 - each becomes an answer
            # NOTE: a variable of the error here would be a cycle with its traceback, which holds the body.
            _respond_error(exchange, coded(exc))

    async def _answer(self, request: Request) -> None:
        path, exchange = request.path, request.exchange
        if path not in _OPEN_PATHS and not self.keys.accept(request.headers.get(b"authorization", b"")):
            raise InvalidAPIKey
        inference = _INFERENCE.fullmatch(path)
        if path == HEALTH_PATH:
            exchange.respond(200, b"{}", JSON)
        elif inference is not None and request.method == "POST":
            self.inferences.check_room(None)
            await self._infer(request, *inference.groups(default=""))
        elif request.is_read and (statistics := _STATISTICS.fullmatch(path)):
            found = await self.triton.statistics(*statistics.groups(default=""))
            exchange.respond(200, msgspec.json.encode({"model_stats": found}), JSON)
        elif request.is_read and _READ.fullmatch(path):
            if _READY.fullmatch(path) and not self.is_engine_ready():
                exchange.respond(503, error_body("the engine is not ready"), JSON)
                return
            _respond(exchange, await self.triton.ask("GET", path))  # For HEAD too: it has the same headers.
        # It is told by its path alone: a proxy that closes it may not look into a URL.
        elif _MANAGEMENT.fullmatch(path) and not exchange.is_absolute:
            if not self.inferences.is_managed:
                raise ClosedEndpoint(endpoint=path[:200])
            await self._manage(request)
        elif inference is not None:
            _refuse_method(exchange, b"POST")
        elif _READ.fullmatch(path) or _STATISTICS.fullmatch(path):
            _refuse_method(exchange, b"GET, HEAD")
        elif path == "*":  # Of OPTIONS alone: it asks about the server.
            exchange.respond(200, b"", (b"allow", ALLOWED_METHODS))
        else:
            exchange.respond(404, error_body(_NOT_OPENAI if path.startswith("/v1/") else "Not Found"), JSON)

    async def _answer_metrics(self, request: Request) -> None:
        if request.path != "/metrics":
            request.exchange.respond(404, error_body("Not Found"), JSON)
        elif not request.is_read:
            _refuse_method(request.exchange, b"GET, HEAD")
        else:
            _respond(request.exchange, await self.triton.metrics())

    async def _infer(self, request: Request, model: str, version: str, action: str) -> None:
        body = await self._body(request)
        await self.inferences.connect()
        if len(body) <= _BIG_BYTES:
            message, answer = self._read(request, body, model, version, action)
        else:
            async with self._big:
                start_s = asyncio.get_running_loop().time()
                message, answer = self._read(request, body, model, version, action)
                await asyncio.sleep(asyncio.get_running_loop().time() - start_s)
        del body
        request.exchange.release()  # The inference holds its message from now on.
        metadata = [(b"traceparent", value)] if (value := request.headers.get(b"traceparent")) else []
        key = self.inferences.next_key()
        inference = Inference(
            self.inferences,
            request.exchange,
            key,
            metadata,
            answer.receive,
            answer.end,
            is_single=action == "infer",
        )
        try:
            inference.send(message)
            del message
            await answer.done
        except BaseException:
            inference.cancel()
            raise

    def _read(
        self, request: Request, body: bytearray, model: str, version: str, action: str
    ) -> tuple[Any, Answer]:
        exchange = request.exchange
        served = self.inferences.models.get(model, version)
        if action == "infer":
            length = request.headers.get(b"inference-header-content-length")
            if length is not None and not (length.isdigit() and len(length) < 12):
                raise InvalidInference(reason="Inference-Header-Content-Length is not a number")
            json_length = None if length is None else int(length)
            message, form = infer_request(bytes(body), json_length, model, version)
            return message, InferAnswer(exchange, form)
        message = generate_request(bytes(body), served, version)
        return message, (StreamAnswer if action == "generate_stream" else Answer)(exchange)

    async def _body(self, request: Request) -> bytearray:
        """Receive the whole body. Raises RequestTooLarge (E1110)."""
        length = request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self.max_body_bytes:
            raise too_large(self.max_body_bytes)
        body, is_complete = bytearray(), False
        while not is_complete:
            message = await request.receive()
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)
            if len(body) > self.max_body_bytes:
                raise too_large(self.max_body_bytes)
        return body

    async def _manage(self, request: Request) -> None:
        body = bytes(await self._body(request))
        if len(body) > _MAX_MANAGEMENT_BYTES:
            raise InvalidInference(reason=f"it has more than {_MAX_MANAGEMENT_BYTES} bytes")
        if body:
            JSONBounds(_MAX_MANAGEMENT_BYTES, "send less", InvalidInference, _MAX_DEPTH).feed(body)
            msgspec.json.decode(body)
        _respond(request.exchange, await self.triton.ask(request.method, request.path, body))


def _respond_error(exchange: Exchange, error: CodedError) -> None:
    if exchange.has_started:
        exchange.abort()
    else:
        exchange.respond(statuses_of(error)[0], error_body(str(error)), JSON)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def _refuse_method(exchange: Exchange, allowed: bytes) -> None:
    exchange.respond(405, error_body("Method Not Allowed"), JSON, (b"allow", allowed))


def _respond(exchange: Exchange, answer: HTTPAnswer) -> None:
    exchange.respond(answer.status, answer.content, (b"content-type", answer.content_type))
