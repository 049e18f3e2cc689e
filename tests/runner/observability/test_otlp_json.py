"""Spans get to a collector as OTLP's JSON, and one that does not take them costs nothing but the spans."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue

import pytest

from runner.observability import otlp_json
from runner.observability.otlp_json import OtlpTarget, Span, SpanExporter, otlp_attributes, parse_traceparent
from tests.runner.otlp_receiver import OtlpReceiver
from tests.runner.servers import HOST, wait_until

TRACE, PARENT = "a" * 32, "c" * 16
MANY_SPANS = 5000


class Drops:
    def __init__(self) -> None:
        self.count = 0

    def add(self, num_spans: int) -> None:
        self.count += num_spans


def span(number: int = 0, **more: object) -> Span:
    return {
        "name": "engine",
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "parentSpanId": PARENT,
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "2500000000",
        "attributes": otlp_attributes(more),
    }


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A collector that takes connections and never answers."""
    with socket.create_server((HOST, 0)) as listener:
        yield f"http://{HOST}:{listener.getsockname()[1]}/v1/traces"


def test_a_span_arrives_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_json, "_BATCH_INTERVAL_S", 0.01)
    attributes = {"tokens": 1 << 40, "seconds": 0.5, "text": "ü", "is": True, "reasons": ["length"]}
    with OtlpReceiver() as receiver:
        exporter = SpanExporter(OtlpTarget(f"{receiver.url}/v1/traces", "mine-engine"), Drops().add)
        exporter.add(span(7, **attributes))
        exporter.add({**span(8), "status": {"code": 2, "message": "E2107"}})
        first, second = wait_until(lambda: receiver.spans if len(receiver.spans) == 2 else [])
        exporter.close()
    assert (first.service, first.name, first.is_error) == ("mine-engine", "engine", False)
    assert (first.trace_id, first.span_id, first.parent_id) == (TRACE, f"{7:016x}", PARENT)
    assert (first.start_ns, first.end_ns) == (1_000_000_000, 2_500_000_000)
    (reason,) = first.attributes.pop("reasons").values
    assert reason.string_value == "length"
    assert first.attributes == {name: value for name, value in attributes.items() if name != "reasons"}
    assert second.is_error
    assert "E2107" in second.text


def test_what_is_queued_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_json, "_BATCH_INTERVAL_S", 3600.0)
    with OtlpReceiver() as receiver:
        exporter = SpanExporter(OtlpTarget(f"{receiver.url}/v1/traces", "mine"), Drops().add)
        for number in range(700):
            exporter.add(span(number))
        exporter.close()
        wait_until(lambda: len(receiver.spans) == 700)
    assert [int(each.span_id, 16) for each in receiver.spans] == list(range(700))


def test_a_silent_collector_delays_nothing_and_its_spans_are_counted(
    silent_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_json, "_FLUSH_S", 0.2)
    drops = Drops()
    exporter = SpanExporter(OtlpTarget(silent_url, "mine"), drops.add)
    start_s = time.monotonic()
    for number in range(MANY_SPANS):
        exporter.add(span(number))
    assert time.monotonic() - start_s < otlp_json._TIMEOUT_S
    assert MANY_SPANS - 2 * otlp_json._MAX_QUEUED_SPANS <= drops.count < MANY_SPANS
    start_s = time.monotonic()
    exporter.close()
    assert time.monotonic() - start_s < otlp_json._FLUSH_S + 2


@pytest.mark.parametrize("status", [401, 503])
def test_a_collector_that_refuses_is_tried_again_with_later_spans(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp_json, "_BATCH_INTERVAL_S", 0.01)
    statuses = iter([status, status, 200])
    answered: Queue[int] = Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(answer := next(statuses))
            self.send_header("Content-Length", "0")
            self.end_headers()
            answered.put(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    drops = Drops()
    with HTTPServer((HOST, 0), Collector) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://{HOST}:{server.server_port}/v1/traces"
        exporter = SpanExporter(OtlpTarget(url, "mine"), drops.add)
        for expected in (1, 2, 2):
            exporter.add(span())
            answered.get(timeout=60)
            wait_until(lambda expected=expected: drops.count == expected)
        exporter.close()
        server.shutdown()
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert str(status) in caplog.text


def test_headers_go_with_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_json, "_BATCH_INTERVAL_S", 0.01)
    received: Queue[dict[str, str]] = Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer((HOST, 0), Collector) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        target = OtlpTarget(f"http://{HOST}:{server.server_port}/", "mine", "X-Key=a%20b, X-Team = cog=1,")
        exporter = SpanExporter(target, Drops().add)
        exporter.add(span())
        headers = received.get(timeout=60)
        exporter.close()
    assert (headers["X-Key"], headers["X-Team"]) == ("a b", "cog=1")
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (f"00-{TRACE}-{PARENT}-01", (TRACE, PARENT)),
        (f"00-{TRACE}-{PARENT}-03", (TRACE, PARENT)),
        (f"00-{TRACE}-{PARENT}-00", None),
        (f"00-{TRACE}-{PARENT}-02", None),
        ("", None),
        ("nonsense", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
    ],
)
def test_only_a_recorded_trace_is_continued(text: str, ids: tuple[str, str] | None) -> None:
    assert parse_traceparent(text) == ids
