"""Sends spans to an OpenTelemetry collector: OTLP over HTTP as JSON, with the standard library alone.

For the engine server, as the engine environment may have no OpenTelemetry. Sending never delays a request:
spans that the collector does not take in time are dropped and counted.
"""

import json
import logging
import re
import threading
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote

_BATCH_INTERVAL_S = 1.0
_MAX_BATCH_SPANS = 512
_MAX_QUEUED_SPANS = 2048
_TIMEOUT_S = 5.0
_FLUSH_S = 1.0
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]")
_KEYS = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}

log = logging.getLogger("cog_triton.engine")

Span = Mapping[str, object]
"""Fields of OTLP's ``Span``, by their names in JSON."""


@dataclass(frozen=True)
class OtlpTarget:
    """Where spans are sent, and as whose. ``headers``: ``name=value,...``; they may hold a secret."""

    url: str
    service_name: str
    headers: str = ""


def parse_traceparent(text: str) -> tuple[str, str] | None:
    """Trace id and span id of a W3C context; None if there is none, or its trace is not recorded."""
    match = _TRACEPARENT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def otlp_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    # As JSON numbers lose digits of large integers, these are text.
    return {_KEYS[type(value)]: str(value) if type(value) is int else value}


class SpanExporter:
    """Takes spans from any thread, and sends them in batches from its own."""

    def __init__(self, target: OtlpTarget, on_drop: Callable[[int], object]) -> None:
        """``on_drop`` is called with the number of spans that were dropped."""
        pairs = (each.partition("=") for each in target.headers.split(",") if "=" in each)
        headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
        self._headers = headers | {"Content-Type": "application/json"}
        self._url = target.url
        self._resource = {"attributes": otlp_attributes({"service.name": target.service_name})}
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
            if len(self._queue) >= _MAX_QUEUED_SPANS:
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
            while self._queue:
                with self._lock:
                    count = min(len(self._queue), _MAX_BATCH_SPANS)
                    batch = [self._queue.popleft() for _ in range(count)]
                self._send(batch)

    def _send(self, spans: list[Span]) -> None:
        scope_spans = [{"scope": {"name": "cog_triton"}, "spans": spans}]
        body = json.dumps({"resourceSpans": [{"resource": self._resource, "scopeSpans": scope_spans}]})
        request = urllib.request.Request(self._url, body.encode(), self._headers)  # noqa: S310 - the operator's URL
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
                response.read()
            self._is_answering = True
        except (OSError, ValueError, HTTPException) as exc:
            with self._lock:
                self._on_drop(len(spans))
            if self._is_answering:
                log.warning("spans are dropped: the collector does not accept them (%s)", exc)
            self._is_answering = False
