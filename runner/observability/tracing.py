"""OpenTelemetry traces of generations. Without an OTLP endpoint nothing is imported or recorded.

One trace holds the client's span, Cog's (or the OpenAI server's) and ours: W3C's ``traceparent`` comes from
the client, is the current context when a generation is made, and goes on to Triton if that runs the engine.
Attributes are those of OpenTelemetry's conventions for generative AI; texts are never among them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.observability.logs import GenerationSummary

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE_NAME = "cog-triton"
PROVIDER = "cog_triton"
_OPERATION = "text_completion"
_NS = 1_000_000_000


def open_tracing(url: str | None, service_name: str, model: str) -> Tracing | None:
    """Open tracing to the OTLP endpoint ``url``; None: no tracing.

    Cog's worker has a trace provider already, which is then used; elsewhere one is made.
    """
    if url is None:
        return None
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        trace.set_tracer_provider(provider)
    return Tracing(trace.get_tracer("cog_triton"), model)


def triton_arguments(url: str | None, service_name: str) -> list[str]:
    """Return arguments to trace only requests that bring a context (rate=0). Triton speaks OTLP's JSON."""
    if url is None:
        return []
    values = {
        "mode": "opentelemetry",
        "opentelemetry,url": url,
        "opentelemetry,resource": f"service.name={service_name}-triton",
        "level": "TIMESTAMPS",
        "rate": "0",
    }
    return [f"--trace-config={name}={value}" for name, value in values.items()]


@dataclass(frozen=True)
class Tracing:
    """Traces of one process."""

    tracer: Tracer
    _model: str

    def begin(
        self,
        request: Mapping[str, str | float],
        *,
        response_id: str,
        operation: str = _OPERATION,
        model: str = "",
    ) -> RequestTrace:
        """Begin a generation's trace, in the current context. ``model``: the name that the client knows."""
        model = model or self._model
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.id": response_id,
            **{f"gen_ai.request.{name}": value for name, value in request.items()},
        }
        return RequestTrace(
            self.tracer, self.tracer.start_span(f"{operation} {model}", attributes=attributes)
        )

    def flush(self) -> None:
        """Send the remaining traces; this takes as long as the collector does."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider)
        provider.force_flush()


@dataclass(frozen=True)
class RequestTrace:
    """The span of one generation, and those of its phases."""

    _tracer: Tracer
    _span: Span

    @property
    def is_recording(self) -> bool:
        return self._span.is_recording()

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def traceparent(self) -> str:
        """Return the context of the engine's spans; empty for a trace that is not recorded."""
        context = self._span.get_span_context()
        if not context.trace_flags.sampled:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def ended(self, generation: GenerationSummary) -> None:
        span = self._span
        _add_outcome(span, generation)
        if span.is_recording():
            if generation.cached_token_count is not None:
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", generation.cached_token_count)
            self._add_times(generation)
        span.end()

    def _add_times(self, generation: GenerationSummary) -> None:
        """Add the phases' spans. If the request did not finish, ``engine`` begins when it was sent."""
        from opentelemetry.trace import set_span_in_context

        behind_ns = time.time_ns() - time.perf_counter_ns()
        first_s = generation.time_to_first_token_s
        if first_s is not None:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", first_s)
        self._span.set_attribute("cog_triton.detokenize.seconds", generation.detokenize_s)
        context = set_span_in_context(self._span)
        phases = {name: (start_s, end_s) for name, start_s, end_s in generation.phases}
        if generation.finish_reason is None and "tokenize" in phases:
            phases.setdefault("engine", (phases["tokenize"][1], time.perf_counter()))
        for name, (start_s, end_s) in phases.items():
            child = self._tracer.start_span(name, context, start_time=int(start_s * _NS) + behind_ns)
            if name == "engine":
                _add_outcome(child, generation)
            if name == "engine" and "queue" in phases:
                child.set_attribute("cog_triton.queue.seconds", phases["queue"][1] - phases["queue"][0])
            child.end(int(end_s * _NS) + behind_ns)


def _add_outcome(span: Span, generation: GenerationSummary) -> None:
    from opentelemetry.trace import Status, StatusCode

    if generation.error:
        span.set_attribute("error.type", generation.error)
        span.set_status(Status(StatusCode.ERROR, generation.error))
    span.set_attribute("gen_ai.usage.input_tokens", generation.input_token_count)
    span.set_attribute("gen_ai.usage.output_tokens", generation.output_token_count)
    if generation.finish_reason is not None:
        span.set_attribute("gen_ai.response.finish_reasons", [generation.finish_reason])
    elif not generation.error:
        span.set_attribute("cog_triton.cancelled", True)
