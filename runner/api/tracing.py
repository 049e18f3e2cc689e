"""The span of one call: child of the client's span (W3C ``traceparent``), parent of its generations' spans.

Attributes follow OpenTelemetry's conventions for HTTP servers and generative AI. Only the ids of what the
client sent are recorded. The module is imported only if an OTLP endpoint is set.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from runner.api.call import GENERATION_PATHS, Call
from runner.observability.tracing import PROVIDER, Tracing

_HEADERS = (b"traceparent", b"tracestate")
_PROPAGATOR = TraceContextTextMapPropagator()


@contextmanager
def server_span(tracing: Tracing, scope: Scope, call: Call) -> Iterator[str]:
    """Provide the id of the trace of the span, which is current while the call is served."""
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
    parent = _PROPAGATOR.extract(headers, context.Context())
    span = tracing.tracer.start_span(
        f"{scope['method']} {call.path}", parent, SpanKind.SERVER, attributes=_request_attributes(scope, call)
    )
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield f"{span.get_span_context().trace_id:032x}"
    finally:
        context.detach(token)
        if span.is_recording():
            _set_outcome(span, call)
        span.end()


def _request_attributes(scope: Scope, call: Call) -> dict[str, str | int]:
    host, port = scope.get("server") or ("", None)
    return {
        "http.request.method": scope["method"],
        "http.route": call.path,
        "url.path": call.path,
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
        "server.address": host,
        "gen_ai.operation.name": GENERATION_PATHS[call.path],
        "gen_ai.provider.name": PROVIDER,
        **({} if port is None else {"server.port": port}),
    }


def _set_outcome(span: Span, call: Call) -> None:
    span.set_attribute("http.response.header.x-request-id", [call.request_id])
    if call.model:
        span.set_attribute("gen_ai.request.model", call.model)
        span.set_attribute("gen_ai.response.id", call.response_id)
    if call.status is None:
        span.set_attribute("cog_triton.cancelled", True)
    else:
        span.set_attribute("http.response.status_code", call.status)
    if call.error is not None:
        # NOTE: only the code of an error: its sentence may quote what a client sent.
        span.set_attribute("error.type", call.error.code)
        # By OpenTelemetry's conventions, a client's mistake is not an error of a server span.
        if not call.error.code.startswith("E1"):
            span.set_status(Status(StatusCode.ERROR, call.error.code))
