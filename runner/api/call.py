"""One call of the API as those see it who watch: each answer has its id, and refusals are counted and logged.

A call may ask for several texts. Each is a request to metrics and logs, and tells its own end; a call that is
refused before any began counts as one.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from errors.coded_error import CodedError
from runner.api.headers import GENERATION_PATHS
from runner.observability.logs import log_refusal
from runner.observability.meter import Meter
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_of
from runner.observability.tracing import Tracing

_NAME = REQUEST_ID_HEADER.lower().encode()
_KEY = "cog_triton.call"


class Call:
    """What is known of one call. Those who serve it fill it in."""

    __slots__ = (
        "arrived_s",
        "error",
        "is_generating",
        "model",
        "path",
        "request_id",
        "response_id",
        "status",
    )

    def __init__(self, request_id: str, path: str) -> None:
        self.request_id = request_id
        self.path = path
        self.arrived_s = time.perf_counter()
        self.status: int | None = None
        self.error: CodedError | None = None
        """What it was answered with, or what its stream ended with."""
        self.is_generating = False
        """It was let in: from now on its generations tell how they ended."""
        self.model = ""
        self.response_id = ""


def call_of(scope: Scope) -> Call:
    return cast(Call, scope[_KEY])


class WatchCalls:
    """In front of the whole application, that no answer is without its id."""

    def __init__(self, app: ASGIApp, meter: Meter, *, is_log_json: bool, tracing: Tracing | None) -> None:
        self._app = app
        self._meter = meter
        self._is_log_json = is_log_json
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _NAME), None)
        call = scope[_KEY] = Call(request_id_of(given), scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message["headers"] = [*message["headers"], (_NAME, call.request_id.encode())]
            await send(message)

        if call.path not in GENERATION_PATHS:
            await self._app(scope, receive, send_with_id)
            return
        with self._trace(scope, call) as trace_id:
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                if not call.is_generating:
                    self._tell_end(call, scope["method"], trace_id)

    def _trace(self, scope: Scope, call: Call) -> AbstractContextManager[str]:
        if self._tracing is None:
            return nullcontext("")
        from runner.api.tracing import server_span

        return server_span(self._tracing, scope, call)

    def _tell_end(self, call: Call, method: str, trace_id: str) -> None:
        """Of a call that was refused, or whose client left before it was read."""
        if call.error is None and method != "POST":
            return  # A browser asked whether it may ask.
        code = call.error.code if call.error is not None else ""
        outcome = "failed" if code else "cancelled"
        self._meter.ended(outcome, code)
        if self._is_log_json:
            duration_s = time.perf_counter() - call.arrived_s
            log_refusal("openai", outcome, call.request_id, code, duration_s, trace_id)
