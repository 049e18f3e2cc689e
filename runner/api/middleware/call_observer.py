"""Middleware around the whole application: gives each answer its id; counts and logs refused calls.

A call may ask for several texts. Each is a request in metrics and logs, and reports its own end. A call that
is refused before any text has begun counts as one request.
"""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.api.call import GENERATION_PATHS, Call, begin_call
from runner.observability.logs import log_refusal
from runner.observability.meter import Meter
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_of
from runner.observability.tracing import Tracing

_ID_HEADER = REQUEST_ID_HEADER.lower().encode()


class CallObserver:
    def __init__(self, app: ASGIApp, meter: Meter, *, is_log_json: bool, tracing: Tracing | None) -> None:
        self._app = app
        self._meter = meter
        self._is_log_json = is_log_json
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == _ID_HEADER), None)
        call = begin_call(scope, request_id_of(given))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message["headers"] = [*message["headers"], (_ID_HEADER, call.request_id.encode())]
            await send(message)

        trace_id = ""
        try:
            if self._tracing is None or call.path not in GENERATION_PATHS:
                await self._app(scope, receive, send_with_id)
            else:
                from runner.api.tracing import server_span  # It imports OpenTelemetry.

                with server_span(self._tracing, scope, call) as trace_id:
                    await self._app(scope, receive, send_with_id)
        finally:
            call.release()
            if call.path in GENERATION_PATHS and not call.is_generating:
                self._report_end(call, scope["method"], trace_id)

    def _report_end(self, call: Call, method: str, trace_id: str) -> None:
        """Report a call that was refused, or whose client disconnected before its body was read."""
        if call.error is None and method != "POST":
            return  # A browser's CORS preflight.
        code = call.error.code if call.error is not None else ""
        outcome = "failed" if code else "cancelled"
        self._meter.ended(outcome, code)
        if self._is_log_json:
            duration_s = time.perf_counter() - call.arrived_s
            log_refusal("openai", outcome, call.request_id, code, duration_s, trace_id)
