"""The spans of traced requests: ``engine``, from a request's arrival to its last token."""

from __future__ import annotations

import secrets
import time
from typing import Any

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Submit
from runner.engines.protocol.relay import End
from runner.observability.otlp_json import Span, otlp_attributes

_INTERNAL, _ERROR = 1, 2
"""OTLP's numbers of a span's kind and of a status."""


def engine_span(
    submit: Submit, ids: tuple[str, str], output_tokens: int, end: End, arrival_s: float, last_token_s: float
) -> Span:
    """The span of one request, a child of its client's (trace id, span id). Times by ``perf_counter``."""
    attributes: dict[str, Any] = {
        "gen_ai.usage.input_tokens": len(submit.input_ids),
        "gen_ai.usage.output_tokens": output_tokens,
    }
    if submit.sent_s is not None:
        attributes["cog_triton.queue.seconds"] = max(arrival_s - submit.sent_s, 0.0)
    status: dict[str, Any] = {}
    if isinstance(end, CodedError):
        # NOTE: of an error only the code: its sentence may quote what a client sent.
        attributes["error.type"] = end.code
        status = {"code": _ERROR, "message": end.code}
    elif end == "cancelled":
        attributes["cog_triton.cancelled"] = True
    else:
        attributes["gen_ai.response.finish_reasons"] = [end]
    behind_ns = time.time_ns() - time.perf_counter_ns()
    return {
        "traceId": ids[0],
        "spanId": secrets.token_hex(8),
        "parentSpanId": ids[1],
        "name": "engine",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(int(arrival_s * 1e9) + behind_ns),
        "endTimeUnixNano": str(int(last_token_s * 1e9) + behind_ns),
        "attributes": otlp_attributes(attributes),
        "status": status,
    }
