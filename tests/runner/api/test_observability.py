"""Calls of the API are named, and refused ones are counted, logged and traced.

``tests/runner/observability`` has those that generate.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner.observability.exposition import exposition
from runner.observability.tracing import Tracing
from tests.runner.api.writing_model import WritingModel

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY = {"Authorization": "Bearer opens"}
JSON = {"Content-Type": "application/json"}
TRACE_ID, CLIENT_SPAN = "a" * 32, "c" * 16


class Watched(WritingModel):
    """The application, all of whose calls are counted, logged and traced."""

    def __init__(self, folder: Path) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        super().__init__(
            folder,
            tracing=Tracing(provider.get_tracer("test"), "model"),
            LOG_FORMAT="json",
            API_KEYS="opens",
            OPENAI_MAX_BODY_BYTES="1000",
        )
        self._folder = folder

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        arguments["headers"] = {**KEY, **arguments.get("headers", {})}
        return super().request(method, path, **arguments)

    def counts(self) -> dict[tuple[str, str], int]:
        pattern = r'cog_triton_requests_total{api="openai",code="(\w*)",outcome="(\w+)"} (\S+)'
        found = re.findall(pattern, exposition(self._folder))
        return {(outcome, code): int(float(count)) for code, outcome, count in found if float(count)}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    return Watched(tmp_path)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", TEXT, {"prompt": "Earth", "max_tokens": 1}),
        ("POST", TEXT, {"prompt": "Earth", "max_tokens": 1, "stream": True}),
        ("POST", TEXT, {"prompt": "Earth", "n": 0}),
        ("GET", TEXT, None),
        ("GET", "/health", None),
        ("GET", "/nowhere", None),
        ("POST", "/tokenize", {"prompt": "Earth"}),
    ],
)
def test_every_answer_has_the_id_that_the_client_gave_or_a_new_one(
    watched: Watched, method: str, path: str, body: object
) -> None:
    named = watched.request(method, path, json=body, headers={"X-Request-ID": "mine/1"})
    assert named.headers.get_list("x-request-id") == ["mine/1"]
    ids = [watched.request(method, path, json=body).headers["x-request-id"] for _ in range(2)]
    for given in (b"", b"two words", b"a" * 129, b"caf\xe9"):
        headers = {b"X-Request-ID": given}
        ids.append(watched.request(method, path, json=body, headers=headers).headers["x-request-id"])
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "code"),
    [
        ("POST", TEXT, b"{", {}, 400, "E1600"),
        ("POST", TEXT, b'{"prompt": "Earth", "best_of": 2}', {}, 400, "E1601"),
        ("POST", CHAT, b'{"messages": []}', {}, 400, "E1005"),
        ("POST", TEXT, b'{"prompt": "Earth"}', {"Authorization": "Bearer opens-not"}, 401, "E1604"),
        ("POST", TEXT, b'{"prompt": "Earth", "model": "other"}', {}, 404, "E1603"),
        ("POST", TEXT, b'"' + b"a" * 10000 + b'"', {}, 413, "E1606"),
        ("OPTIONS", TEXT, b"", {}, 405, "E1605"),
    ],
)
def test_a_refusal_is_counted_once_by_its_code_logged_and_traced(
    watched: Watched,
    capsys: pytest.CaptureFixture[str],
    method: str,
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    trace = {"X-Request-ID": "refused", "traceparent": f"00-{TRACE_ID}-{CLIENT_SPAN}-01"}
    response = watched.request(method, path, content=content, headers={**JSON, **trace, **headers})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert watched.counts() == {("failed", code): 1}
    (line,) = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert (line["request_id"], line["outcome"], line["code"]) == ("refused", "failed", code)
    assert line["trace_id"] == TRACE_ID
    (span,) = watched.exporter.get_finished_spans()
    assert (span.parent and span.parent.span_id) == int(CLIENT_SPAN, 16)
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (status, code)
    assert span.status.is_unset
    assert "Earth" not in span.to_json()


def test_what_does_not_generate_is_not_counted(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("/v1/models", "/health", "/nowhere", "/v1/models/other"):
        watched.request("GET", path)
    watched.post("/tokenize")
    assert (watched.counts(), watched.exporter.get_finished_spans()) == ({}, ())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("header", ["nonsense", "00-0-0-01", f"ff-{'0' * 32}-{'0' * 16}-01"])
def test_a_traceparent_that_is_none_begins_a_new_trace(watched: Watched, header: str) -> None:
    assert watched.request("POST", CHAT, json={}, headers={"traceparent": header}).status_code == 400
    (span,) = watched.exporter.get_finished_spans()
    assert (span.name, span.parent) == (f"POST {CHAT}", None)
