"""Calls of the API are named, counted, logged and traced, refused ones too, and no text is told."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from runner.observability.exposition import exposition
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.otlp_receiver import OtlpReceiver, Span
from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
from tests.runner.servers import HOST, CogUnderTest, free_ports, wait_until

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY = {"Authorization": "Bearer opens"}
PRIVATE = "Nobody may read this."
CLIENT_SPAN = "c" * 16


@dataclass
class Watched:
    """A whole runner whose OpenAI-compatible API is watched by all that watches."""

    cog: CogUnderTest
    client: httpx.Client
    receiver: OtlpReceiver

    def lines(self, request_id: str) -> list[dict[str, Any]]:
        """Return the request's last words in the log."""
        found = [json.loads(line) for line in self.cog.log().splitlines()]
        return [
            line
            for line in found
            if line["logger"] == "cog_triton.request" and line["request_id"] == request_id
        ]

    def line(self, request_id: str) -> dict[str, Any]:
        (line,) = wait_until(lambda: self.lines(request_id))
        return line

    def requests(self) -> dict[tuple[str, str], int]:
        """Return the counts of requests by outcome and code."""
        pattern = r'cog_triton_requests_total{api="openai",code="(\w*)",outcome="(\w+)"} (\S+)'
        found = re.findall(pattern, exposition(self.cog.metrics_dir))
        return {(outcome, code): int(float(count)) for code, outcome, count in found if float(count)}

    def traced(self, path: str, body: dict[str, Any], flags: str = "01") -> tuple[httpx.Response, list[Span]]:
        """Return the answer to a client with a trace of its own, and that trace once it is whole."""
        trace_id = os.urandom(16).hex()
        headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-{flags}"}
        response = self.client.post(path, json=body, headers=headers)

        def is_whole() -> bool:
            spans = self.receiver.trace(trace_id)
            known = {span.span_id for span in spans} | {CLIENT_SPAN}
            names = {span.name for span in spans}
            is_done = response.status_code != 200 or "engine" in names
            return f"POST {path}" in names and is_done and all(span.parent_id in known for span in spans)

        if flags == "01":
            wait_until(is_whole)
        return response, self.receiver.trace(trace_id)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    model = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    (port,) = free_ports(1)
    with OtlpReceiver() as receiver:
        cog = CogUnderTest(
            model,
            folder,
            CHAT_TEMPLATE=str(template),
            LOG_FORMAT="json",
            API_KEYS="opens",
            OPENAI_HOST=HOST,
            OPENAI_PORT=str(port),
            OPENAI_MAX_BODY_BYTES="10000",
            OPENAI_MAX_REQUESTS="4",
            OPENAI_TIMEOUT="2",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        with httpx.Client(base_url=f"http://{HOST}:{port}", headers=KEY, timeout=300) as client:
            yield Watched(cog, client, receiver)
        cog.close()


def chat(**more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PRIVATE}], "max_tokens": 5, **more}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", TEXT, {"prompt": "Earth", "max_tokens": 1}),
        ("POST", TEXT, {"prompt": "Earth", "max_tokens": 1, "stream": True}),
        ("POST", TEXT, {"prompt": "Earth", "n": 0}),
        ("POST", CHAT, {}),
        ("GET", TEXT, None),
        ("GET", "/health", None),
        ("GET", "/metrics", None),
        ("GET", "/v1/models", None),
        ("GET", "/nowhere", None),
        ("POST", "/tokenize", {"prompt": "Earth"}),
    ],
)
def test_every_answer_has_the_id_that_the_client_gave_or_a_new_one(
    watched: Watched, method: str, path: str, body: object
) -> None:
    named = watched.client.request(method, path, json=body, headers={"X-Request-ID": "mine/1"})
    assert named.headers.get_list("x-request-id") == ["mine/1"]
    unnamed = [watched.client.request(method, path, json=body).headers["x-request-id"] for _ in range(2)]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in unnamed)
    assert len(set(unnamed)) == 2


def test_who_has_no_key_gets_an_id_as_well(watched: Watched) -> None:
    headers = {"Authorization": "Bearer opens-not", "X-Request-ID": "keyless"}
    response = watched.client.post(TEXT, json={}, headers=headers)
    assert (response.status_code, response.headers["x-request-id"]) == (401, "keyless")
    assert watched.line("keyless")["code"] == "E1604"


@pytest.mark.parametrize("given", [b"", b"two words", b"a" * 129, b"caf\xe9"])
def test_an_id_that_could_not_be_told_again_is_replaced(watched: Watched, given: bytes) -> None:
    response = watched.client.get("/health", headers={b"X-Request-ID": given})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_one_line_that_tells_no_text(watched: Watched, stream: bool) -> None:
    request_id = f"one-line-{stream}"
    response = watched.client.post(CHAT, json=chat(stream=stream), headers={"X-Request-ID": request_id})
    assert response.status_code == 200
    line = watched.line(request_id)
    told = line["api"], line["outcome"], line["finish_reason"], line["output_tokens"], line["level"]
    assert told == ("openai", "succeeded", "length", 5, "info")
    assert line["duration_s"] >= line["time_to_first_token_s"] > 0
    assert len(line["trace_id"]) == 32
    assert "Nobody" not in watched.cog.log()
    assert "opens" not in watched.cog.log()


def test_each_text_of_a_call_has_its_line(watched: Watched) -> None:
    body = {"prompt": ["Earth", "Fire"], "n": 2, "max_tokens": 3}
    assert watched.client.post(TEXT, json=body, headers={"X-Request-ID": "four"}).status_code == 200
    wait_until(lambda: len(watched.lines("four")) == 4)


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "code"),
    [
        (TEXT, b"{", {}, 400, "E1600"),
        (TEXT, b'{"prompt": "Earth", "best_of": 2}', {}, 400, "E1601"),
        (CHAT, b'{"messages": []}', {}, 400, "E1005"),
        (TEXT, b'{"prompt": "Earth"}', {"Authorization": "Bearer no"}, 401, "E1604"),
        (TEXT, b'{"prompt": "Earth", "model": "other"}', {}, 404, "E1603"),
        (TEXT, b'"' + b"a" * 10000 + b'"', {}, 413, "E1606"),
    ],
)
def test_a_refusal_is_counted_once_by_its_code_logged_and_traced(
    watched: Watched, path: str, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    before = watched.requests()
    request_id, trace_id = f"refused-{code}-{path}", os.urandom(16).hex()
    headers |= {
        "Content-Type": "application/json",
        "X-Request-ID": request_id,
        "traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01",
    }
    response = watched.client.post(path, content=content, headers=headers)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    after = wait_until(lambda: (now := watched.requests()) != before and now)
    counted = ("failed", code)
    assert after == {**before, counted: before.get(counted, 0) + 1}
    line = watched.line(request_id)
    assert (line["outcome"], line["code"], line["trace_id"]) == ("failed", code, trace_id)
    (span,) = wait_until(lambda: watched.receiver.trace(trace_id))
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (status, code)
    assert not span.is_error


def test_a_refusal_of_a_full_server_is_counted_and_logged(watched: Watched) -> None:
    before = watched.requests().get(("failed", "E1607"), 0)
    request_id = wait_until(lambda: refused_while_full(watched))
    wait_until(lambda: watched.requests().get(("failed", "E1607"), 0) > before)
    assert watched.line(request_id)["code"] == "E1607"


def refused_while_full(watched: Watched) -> str | None:
    """Return the id of a request that was; None if what fills the server had had its time by then."""
    body = {"prompt": "Earth", "max_tokens": 4000, "n": 4, "stream": True}
    with watched.client.stream("POST", TEXT, json=body) as full:
        if full.status_code != 200:
            return None
        next(full.iter_lines())
        response = watched.client.post(TEXT, json={"prompt": "Earth", "max_tokens": 1})
        return response.headers["X-Request-ID"] if response.status_code == 429 else None


def test_what_does_not_generate_is_not_counted(watched: Watched) -> None:
    def counts() -> dict[tuple[str, str], float]:
        """Without texts of the test before, which may end only now."""
        return {key: count for key, count in watched.requests().items() if key[0] != "cancelled"}

    before = counts()
    for path in ("/v1/models", "/health", "/nowhere", "/v1/models/other"):
        watched.client.get(path)
    watched.client.post("/tokenize", json={})
    watched.client.options(TEXT)  # 405, E1605: this one is.
    after = wait_until(lambda: (now := counts()) != before and now)
    assert after == {**before, ("failed", "E1605"): before.get(("failed", "E1605"), 0) + 1}


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_has_failed_and_was_not_cancelled(watched: Watched, stream: bool) -> None:
    before = watched.requests().get(("failed", "E2601"), 0)
    request_id = f"slow-{stream}"
    body = {"prompt": "Earth", "max_tokens": 4000, "stream": stream}
    response = watched.client.post(TEXT, json=body, headers={"X-Request-ID": request_id})
    assert "E2601" in response.text
    assert watched.line(request_id)["code"] == "E2601"
    assert watched.requests()[("failed", "E2601")] == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_one_trace_goes_from_the_client_to_the_engine_server(watched: Watched, stream: bool) -> None:
    response, spans = watched.traced(CHAT, chat(stream=stream, temperature=0.5))
    by_id = {span.span_id: span for span in spans}
    (server,) = (span for span in spans if span.name == f"POST {CHAT}")
    (ours,) = (span for span in spans if span.name == "chat paced")
    (engine,) = (span for span in spans if span.name == "engine")
    path = [engine]
    while path[-1].parent_id in by_id:
        path.append(by_id[path[-1].parent_id])
    assert path[-2:] == [ours, server]
    assert server.parent_id == CLIENT_SPAN
    assert engine.attributes["gen_ai.usage.output_tokens"] == 5
    assert server.attributes["http.request.method"] == "POST"
    assert server.attributes["http.route"] == server.attributes["url.path"] == CHAT
    assert server.attributes["http.response.status_code"] == 200
    request_id = response.headers["x-request-id"]
    assert server.attributes["http.response.header.x-request-id"].values[0].string_value == request_id
    assert server.attributes["gen_ai.operation.name"] == ours.attributes["gen_ai.operation.name"] == "chat"
    assert server.attributes["gen_ai.request.model"] == "paced"
    assert server.attributes["gen_ai.response.id"].startswith("chatcmpl-")
    assert ours.attributes["gen_ai.response.id"] == server.attributes["gen_ai.response.id"]
    assert server.attributes["gen_ai.response.id"] in response.text
    assert ours.attributes["gen_ai.usage.output_tokens"] == 5
    assert ours.attributes["gen_ai.request.temperature"] == 0.5
    assert {"tokenize", "queue", "engine", "relay"} <= {
        span.name for span in spans if span.parent_id == ours.span_id
    }
    assert server.start_ns <= ours.start_ns <= ours.end_ns <= server.end_ns
    assert watched.line(request_id)["trace_id"] == server.trace_id


def test_each_text_of_a_call_has_its_span(watched: Watched) -> None:
    _, spans = watched.traced(TEXT, {"prompt": ["Earth", "Fire"], "n": 2, "max_tokens": 2})
    (server,) = (span for span in spans if span.name == f"POST {TEXT}")
    below = [span for span in spans if span.name == "text_completion paced"]
    assert [span.parent_id for span in below] == 4 * [server.span_id]


def test_no_span_holds_a_text_or_a_key(watched: Watched) -> None:
    watched.traced(CHAT, chat(stop="private", user=PRIVATE))
    watched.traced(CHAT, chat(model=PRIVATE))
    everything = "".join(span.text for span in watched.receiver.spans)
    assert not [word for word in ("Nobody", "private", "opens") if word in everything]


def test_a_client_that_keeps_no_trace_gets_none_and_its_answer(watched: Watched) -> None:
    response, spans = watched.traced(CHAT, chat(), flags="00")
    assert response.status_code == 200
    assert spans == []
    watched.traced(CHAT, chat())  # What came before it has been sent by then.
    assert {span.service for span in watched.receiver.spans} == {"cog-triton"}


@pytest.mark.parametrize("header", ["nonsense", "00-0-0-01", f"ff-{'0' * 32}-{'0' * 16}-01"])
def test_a_traceparent_that_is_none_begins_a_new_trace(watched: Watched, header: str) -> None:
    headers = {"traceparent": header, "X-Request-ID": f"odd-{header[:9]}"}
    assert watched.client.post(CHAT, json=chat(), headers=headers).status_code == 200
    trace_id = watched.line(headers["X-Request-ID"])["trace_id"]
    (root,) = wait_until(lambda: [each for each in watched.receiver.trace(trace_id) if not each.parent_id])
    assert root.name == f"POST {CHAT}"


def test_a_client_that_leaves_is_told_as_that(watched: Watched) -> None:
    trace_id = os.urandom(16).hex()
    headers = {"X-Request-ID": "left", "traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01"}
    with pytest.raises(httpx.ReadTimeout):
        watched.client.post(TEXT, json={"prompt": "E", "max_tokens": 4000}, headers=headers, timeout=0.5)
    assert watched.line("left")["outcome"] == "cancelled"
    name = f"POST {TEXT}"
    (span,) = wait_until(lambda: [each for each in watched.receiver.trace(trace_id) if each.name == name])
    assert span.attributes["cog_triton.cancelled"] is True
    assert "http.response.status_code" not in span.attributes
