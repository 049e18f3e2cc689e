"""Triton's HTTP API for clients: inference goes to Triton by gRPC, the rest to its HTTP server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec

from errors.api import InvalidAPIKey
from errors.triton_front import ClosedEndpoint, InvalidInference
from runner.http.rules import ALLOWED_METHODS
from runner.settings.api_keys import APIKeys
from runner.supervision.health import HTTPAnswer
from runner.supervision.json_bounds import JSONBounds
from runner.triton_server.front.answers import error_body
from runner.triton_server.front.http.answers import Answer, InferAnswer, StreamAnswer, coded, fail
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.http.requests import Request
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
"""No key is needed."""
_NOT_OPENAI = "Not Found; the OpenAI-compatible API has a port of its own, OPENAI_PORT"
_MAX_MANAGEMENT_BYTES = 1 << 16
_MAX_DEPTH = 32
"""Triton's parser of JSON recurses."""
_BIG_BYTES = 1 << 17
"""Bodies of more are read one after another, with pauses, so that other clients go on meanwhile."""


class HTTPServer:
    """Answers the requests of all connections."""

    def __init__(
        self,
        inferences: Inferences,
        triton: TritonHTTP,
        keys: APIKeys,
        is_engine_ready: Callable[[], bool],
        *,
        is_managed: bool,
    ) -> None:
        self._inferences = inferences
        self._triton = triton
        self._keys = keys
        self._is_engine_ready = is_engine_ready
        self._is_managed = is_managed
        self._big = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, request: Request) -> None:
        """A head whose body was not received yet. Raises a CodedError."""
        path = request.path
        if path not in _OPEN_PATHS and not self._keys.accept(request.headers.get(b"authorization", b"")):
            raise InvalidAPIKey
        if request.method == "POST" and _INFERENCE.fullmatch(path):
            self._inferences.check_room(None)

    def handle(self, request: Request, connection: HTTPConnection) -> None:
        path = request.path
        inference = _INFERENCE.fullmatch(path)
        if path == HEALTH_PATH:
            connection.respond(200, b"{}")
        elif inference is not None and request.method == "POST":
            if self._inferences.is_connected and len(request.body) <= _BIG_BYTES:
                self._infer(request, connection, *inference.groups(default=""))
            else:
                self._start(self._infer_later, request, connection, inference.groups(default=""))
        elif request.method in ("GET", "HEAD") and (statistics := _STATISTICS.fullmatch(path)):
            self._start(self._statistics, request, connection, *statistics.groups(default=""))
        elif request.method in ("GET", "HEAD") and _READ.fullmatch(path):
            self._start(self._read, request, connection, path)
        # By its path alone: a proxy that closes it may not look into a URL.
        elif _MANAGEMENT.fullmatch(path) and request.target.startswith(b"/"):
            if not self._is_managed:
                fail(connection, ClosedEndpoint(endpoint=path[:200]))
            else:
                self._start(self._manage, request, connection, path)
        elif inference is not None:
            _refuse_method(connection, b"POST")
        elif _READ.fullmatch(path) or _STATISTICS.fullmatch(path):
            _refuse_method(connection, b"GET, HEAD")
        elif path == "*":  # Of OPTIONS alone: it asks about the server.
            connection.respond(200, b"", headers=(b"allow: " + ALLOWED_METHODS,))
        elif path.startswith("/v1/"):
            connection.respond(404, error_body(_NOT_OPENAI))
        else:
            connection.respond(404, error_body("Not Found"))

    def handle_metrics(self, request: Request, connection: HTTPConnection) -> None:
        """On Triton's metrics port."""
        if request.path != "/metrics":
            connection.respond(404, error_body("Not Found"))
        elif request.method not in ("GET", "HEAD"):
            _refuse_method(connection, b"GET, HEAD")
        else:
            self._start(self._metrics, request, connection)

    # Inference

    def _infer(
        self, request: Request, connection: HTTPConnection, model: str, version: str, action: str
    ) -> None:
        try:
            served = self._inferences.models.get(model, version)
            answer: Answer
            if action == "infer":
                length = request.headers.get(b"inference-header-content-length")
                if length is not None and not (length.isdigit() and len(length) < 12):
                    raise InvalidInference(reason="Inference-Header-Content-Length is not a number")
                json_length = None if length is None else int(length)
                message, form = infer_request(bytes(request.body), json_length, model, version)
                answer = InferAnswer(connection, form)
            else:
                message = generate_request(bytes(request.body), served, version)
                answer = (StreamAnswer if action == "generate_stream" else Answer)(connection)
            request.body = bytearray()
            request.share.release()  # Its inference holds it from now on.
            metadata = [(b"traceparent", value)] if (value := request.headers.get(b"traceparent")) else []
            is_single = action == "infer"
            key = self._inferences.next_key()
            inference = Inference(
                self._inferences, connection, key, metadata, answer.receive, answer.end, is_single=is_single
            )
            connection.on_disconnect = answer.cancel = inference.cancel
            try:
                inference.send(message)
            except BaseException:
                inference.cancel()
                raise
        except Exception as exc:  # noqa: BLE001 - each becomes an answer
            fail(connection, coded(exc))

    async def _infer_later(
        self, request: Request, connection: HTTPConnection, parts: tuple[str, ...]
    ) -> None:
        await self._inferences.connect()
        if len(request.body) <= _BIG_BYTES:
            self._infer(request, connection, *parts)
            return
        async with self._big:
            start_s = asyncio.get_running_loop().time()
            self._infer(request, connection, *parts)
            await asyncio.sleep(asyncio.get_running_loop().time() - start_s)

    # Everything else

    async def _read(self, request: Request, connection: HTTPConnection, path: str) -> None:
        if _READY.fullmatch(path) and not self._is_engine_ready():
            connection.respond(503, error_body("the engine is not ready"))
            return
        _respond(connection, await self._triton.ask("GET", path))  # For HEAD too: it has the same headers.

    async def _statistics(
        self, request: Request, connection: HTTPConnection, model: str, version: str
    ) -> None:
        statistics = await self._triton.statistics(model, version)
        connection.respond(200, msgspec.json.encode({"model_stats": statistics}))

    async def _metrics(self, request: Request, connection: HTTPConnection) -> None:
        _respond(connection, await self._triton.metrics())

    async def _manage(self, request: Request, connection: HTTPConnection, path: str) -> None:
        body = bytes(request.body)
        if len(body) > _MAX_MANAGEMENT_BYTES:
            raise InvalidInference(reason=f"it has more than {_MAX_MANAGEMENT_BYTES} bytes")
        if body:
            JSONBounds(_MAX_MANAGEMENT_BYTES, "send less", InvalidInference, _MAX_DEPTH).feed(body)
            msgspec.json.decode(body)
        _respond(connection, await self._triton.ask(request.method, path, body))

    def _start(
        self,
        work: Callable[..., Awaitable[None]],
        request: Request,
        connection: HTTPConnection,
        *arguments: object,
    ) -> None:
        """Do it in a task, which ends when its client disconnects."""

        async def run() -> None:
            try:
                await work(request, connection, *arguments)
            except Exception as exc:  # noqa: BLE001 - each becomes an answer
                fail(connection, coded(exc))

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        connection.on_disconnect = cancel


def _refuse_method(connection: HTTPConnection, allowed: bytes) -> None:
    connection.respond(405, error_body("Method Not Allowed"), headers=(b"allow: " + allowed,))


def _respond(connection: HTTPConnection, answer: HTTPAnswer) -> None:
    connection.respond(answer.status, answer.content, answer.content_type)
