"""The spans of traced requests: ``engine``, from a request's arrival to its last token."""

from __future__ import annotations

import secrets
import time

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Submit
from runner.engines.protocol.relay import End
from runner.observability.otlp_json import Span, SpanExporter, parse_traceparent


class EngineSpan:
    """The span of one request, a child of its client's."""

    def __init__(self, exporter: SpanExporter, submit: Submit, trace_id: str, parent_id: str) -> None:
        self._exporter = exporter
        self._submit = submit
        self._trace_id = trace_id
        self._parent_id = parent_id
        self.output_tokens = 0

    def end(self, end: End, arrival_s: float, last_token_s: float) -> None:
        """Both times by ``perf_counter``."""
        attributes: dict[str, object] = {
            "gen_ai.usage.input_tokens": len(self._submit.input_ids),
            "gen_ai.usage.output_tokens": self.output_tokens,
        }
        if self._submit.sent_s is not None:
            attributes["cog_triton.queue.seconds"] = max(arrival_s - self._submit.sent_s, 0.0)
        if isinstance(end, CodedError):
            attributes["error.type"] = end.code
        elif end == "cancelled":
            attributes["cog_triton.cancelled"] = True
        else:
            attributes["gen_ai.response.finish_reasons"] = [end]
        behind_ns = time.time_ns() - time.perf_counter_ns()
        self._exporter.add(
            Span(
                "engine",
                self._trace_id,
                secrets.token_hex(8),
                self._parent_id,
                start_ns=int(arrival_s * 1e9) + behind_ns,
                end_ns=int(last_token_s * 1e9) + behind_ns,
                attributes=attributes,
                # NOTE: of an error only the code: its sentence may quote what a client sent.
                error=end.code if isinstance(end, CodedError) else "",
            )
        )


def open_span(exporter: SpanExporter | None, submit: Submit) -> EngineSpan | None:
    """None for a request that is not traced."""
    if exporter is None or not submit.traceparent or (ids := parse_traceparent(submit.traceparent)) is None:
        return None
    return EngineSpan(exporter, submit, *ids)
