"""Sends spans to an OpenTelemetry collector: OTLP over HTTP as JSON, with the standard library alone.

For the engine server, as the engine environment may have no OpenTelemetry. Sending never delays a request:
spans that the collector does not take in time are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

_BATCH_INTERVAL_S = 1.0
_MAX_BATCH_SPANS = 512
_MAX_QUEUED_SPANS = 2048
_TIMEOUT_S = 5.0
_FLUSH_S = 1.0
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_INTERNAL, _ERROR = 1, 2
"""OTLP's numbers of a span's kind and of a status."""

log = logging.getLogger("cog_triton.engine")


@dataclass(frozen=True)
class OtlpTarget:
    """Where spans are sent, and as whose. ``headers``: ``name=value,...``; they may hold a secret."""

    url: str
    service_name: str
    headers: str = ""


@dataclass(frozen=True)
class Span:
    """Ids in hex, times since the epoch. With ``error`` its status is an error, described by that text."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, object] = field(default_factory=dict)
    error: str = ""


def parse_traceparent(text: str) -> tuple[str, str] | None:
    """Trace id and span id of a W3C context; None if there is none, or its trace is not recorded."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or not int(match[3], 16) & 1:
        return None
    return match[1], match[2]


def _parse_headers(text: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split(",") if "=" in each)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


class SpanExporter:
    """Takes spans from any thread, and sends them in batches from its own."""

    def __init__(self, target: OtlpTarget, on_drop: Callable[[int], object]) -> None:
        """``on_drop`` is called with the number of spans that were dropped."""
        self._target = target
        self._headers = {**_parse_headers(target.headers), "Content-Type": "application/json"}
        self._on_drop = on_drop
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        """A batch is full, or the exporter is closing."""
        self._closing = False
        self._is_answering = True
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        with self._lock:
            is_full = len(self._queue) >= _MAX_QUEUED_SPANS
            if is_full:
                self._on_drop(1)
            else:
                self._queue.append(span)
            if len(self._queue) == _MAX_BATCH_SPANS:
                self._wake.set()

    def close(self) -> None:
        """Send what is queued, for a second at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(_FLUSH_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_BATCH_INTERVAL_S)
            self._wake.clear()
            while batch := self._take():
                self._send(batch)

    def _take(self) -> list[Span]:
        with self._lock:
            return [self._queue.popleft() for _ in range(min(len(self._queue), _MAX_BATCH_SPANS))]

    def _send(self, spans: Sequence[Span]) -> None:
        body = json.dumps(_request(self._target.service_name, spans)).encode()
        request = urllib.request.Request(self._target.url, body, self._headers)  # noqa: S310 - the operator's URL
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                response.read()
        except (OSError, ValueError) as exc:
            with self._lock:
                self._on_drop(len(spans))
            if self._is_answering:
                log.warning("spans are dropped: the collector does not accept them (%s)", exc)
            self._is_answering = False
            return
        self._is_answering = True


def _request(service_name: str, spans: Sequence[Span]) -> dict[str, Any]:
    """OTLP's ExportTraceServiceRequest."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": service_name})},
                "scopeSpans": [
                    {"scope": {"name": "cog_triton"}, "spans": [_span(each) for each in spans]},
                ],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }


def _attributes(attributes: Mapping[str, object]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: object) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}
