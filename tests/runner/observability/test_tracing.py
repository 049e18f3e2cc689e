"""One trace holds a client's span, Cog's and ours, with those of the phases, as a collector decodes them."""

import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from runner.cog_server.__main__ import switch_tracing_on
from runner.observability.logs import GenerationSummary
from runner.observability.tracing import Tracing, open_tracing, triton_arguments
from runner.settings.settings import load_settings
from tests.runner.observability.watched import CLIENT_SPAN, KEY, PATHS, PROMPT, Watched
from tests.runner.otlp_receiver import Span
from tests.runner.paced_engine import TOKENS_PER_SECOND
from tests.runner.servers import DEADLINE_S, HOST, triton_pids, wait_until

PHASES = ("tokenize", "queue", "engine", "relay")


@pytest.mark.servers
@pytest.mark.parametrize("path", PATHS)
def test_one_trace_goes_from_the_client_through_its_server_and_us_to_the_engine(
    watched: Watched, path: str
) -> None:
    fields = {} if path == "/predictions" else {"stream": True}
    response, spans = watched.traced(path, max_tokens=20, temperature=0.5, **fields)
    by_id = {span.span_id: span for span in spans}
    (ours,) = (span for span in spans if span.name == PATHS[path])
    (engine,) = (span for span in spans if span.name == "engine")
    trace = [engine]
    while trace[-1].parent_id in by_id:
        trace.append(by_id[trace[-1].parent_id])
    server = trace[-1]
    assert (trace[1], server.name, server.parent_id) == (ours, f"POST {path}", CLIENT_SPAN)
    assert server.start_ns <= ours.start_ns <= ours.end_ns <= server.end_ns
    assert {span.service for span in spans} == {"cog-triton"}
    for span in (ours, engine):
        assert 1 < span.attributes["gen_ai.usage.input_tokens"] <= len(f"<user>{PROMPT}<assistant>")
        assert span.attributes["gen_ai.usage.output_tokens"] == 20
        assert span.attributes["gen_ai.response.finish_reasons"].values[0].string_value == "length"
    assert ours.attributes["gen_ai.operation.name"] == PATHS[path].split()[0]
    assert ours.attributes["gen_ai.request.temperature"] == 0.5
    assert ours.attributes["gen_ai.request.max_tokens"] == 20
    assert 0 <= engine.attributes["cog_triton.queue.seconds"] < 60
    phases = {span.name: span for span in spans if span.parent_id == ours.span_id and span.name in PHASES}
    assert set(phases) == set(PHASES)
    for before, after in itertools.pairwise(PHASES):
        assert phases[before].end_ns == pytest.approx(phases[after].start_ns, abs=1e5)
    assert phases["engine"].end_ns - phases["engine"].start_ns >= 19 / TOKENS_PER_SECOND * 1e9
    assert ours.start_ns <= phases["tokenize"].start_ns <= phases["relay"].end_ns <= ours.end_ns
    if path != "/predictions":
        check_server_span(server, ours, response)
        assert watched.line_of(response.headers["x-request-id"])["trace_id"] == server.trace_id


def check_server_span(server: Span, ours: Span, response: httpx.Response) -> None:
    attributes = server.attributes
    assert attributes["http.request.method"] == "POST"
    assert f"POST {attributes['http.route']}" == f"POST {attributes['url.path']}" == server.name
    assert attributes["http.response.status_code"] == 200
    request_id = attributes["http.response.header.x-request-id"].values[0].string_value
    assert request_id == response.headers["x-request-id"]
    assert attributes["gen_ai.request.model"] == "paced"
    for name in ("gen_ai.operation.name", "gen_ai.response.id"):
        assert attributes[name] == ours.attributes[name]
    assert attributes["gen_ai.response.id"] in response.text


@pytest.mark.servers
def test_each_text_of_a_call_has_its_span(watched: Watched) -> None:
    path = "/v1/completions"
    _, spans = watched.traced(path, prompt=["Earth", "Fire"], n=2)
    (server,) = (span for span in spans if span.name == f"POST {path}")
    assert [span.parent_id for span in spans if span.name == PATHS[path]] == 4 * [server.span_id]


@pytest.mark.servers
def test_a_request_by_triton_has_tritons_spans_alone(watched: Watched) -> None:
    assert {span.service for span in trace_of_triton(watched)} == {"cog-triton-triton"}


def trace_of_triton(watched: Watched) -> list[Span]:
    """Return the spans of a request by Triton.

    NOTE: Triton's exporter (opentelemetry-cpp 1.13) drops what it can't send within 10 s, and an error of
    libcurl's blocks it for good: HttpClient::resetMultiHandle takes a lock twice. A new Triton has a new one.
    """
    for _ in range(3):
        with suppress(AssertionError):
            return trace_of_this_triton(watched)
        print(f"no span came; the last lines of Triton and its runner:\n{watched.cog.log()[-4000:]}")
        for pid in triton_pids(watched.cog.triton_http_port):
            os.kill(pid, signal.SIGKILL)
    raise AssertionError("no span came from any of three Tritons")


def trace_of_this_triton(watched: Watched) -> list[Span]:
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01", "Authorization": f"Bearer {KEY}"}
    url = f"http://{HOST}:{watched.cog.triton_http_port}/v2/models/ensemble/generate"
    body = {"text_input": PROMPT, "max_tokens": 2}
    wait_until(lambda: httpx.post(url, json=body, headers=headers, timeout=DEADLINE_S).is_success)
    return wait_until(lambda: watched.receiver.trace(trace_id), timeout_s=60)


@pytest.mark.servers
def test_a_failure_is_told_by_its_code(watched: Watched) -> None:
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01"}
    body = {"input": {"prompt": PROMPT * 1000}}
    assert watched.cog.client.post("/predictions", json=body, headers=headers).json()["status"] == "failed"
    (ours,) = wait_until(
        lambda: [span for span in watched.receiver.trace(trace_id) if span.name == PATHS["/predictions"]]
    )
    assert ours.is_error
    assert ours.attributes["error.type"] == "E1002"


@pytest.mark.servers
def test_no_span_holds_a_text_or_a_key(watched: Watched) -> None:
    watched.traced("/predictions", stop_sequences="private")
    watched.traced("/v1/chat/completions", stop="private", user=PROMPT)
    everything = "".join(span.text for span in watched.receiver.spans)
    assert not [word for word in ("Nobody", "private", KEY) if word in everything]


@pytest.mark.servers
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_keeps_no_trace_gets_none_and_its_answer(watched: Watched, path: str) -> None:
    response, spans = watched.traced(path, flags="00")
    assert (response.status_code, spans) == (200, [])
    watched.traced(path)  # What came before it has been sent by then.
    assert {span.service for span in watched.receiver.spans} <= {"cog-triton", "cog-triton-triton"}


@pytest.mark.parametrize("error", ["E2107", ""])
def test_the_engines_span_of_a_request_without_an_end_begins_when_it_was_sent(error: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = Tracing(provider.get_tracer("test"), "paced").begin({}, response_id="1")
    sent_s = time.perf_counter()
    phases = (("tokenize", sent_s - 0.5, sent_s),)
    trace.ended(GenerationSummary("1", trace.trace_id, None, error, 3, None, 7, 1.0, 0.1, 0.0, phases, {}))
    tokenize, engine, ours = exporter.get_finished_spans()
    assert (tokenize.name, engine.name, ours.name) == ("tokenize", "engine", "text_completion paced")
    assert engine.start_time == pytest.approx(tokenize.end_time, abs=1e6)
    for span in (engine, ours):
        assert span.attributes["gen_ai.usage.output_tokens"] == 7
        assert span.attributes.get("error.type", "") == error
        assert span.attributes.get("cog_triton.cancelled", False) == (not error)
        assert span.status.is_ok == (not error)


def test_without_an_endpoint_nothing_is_traced(tmp_path: Path) -> None:
    for variables in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}):
        settings = load_settings({"HOME": str(tmp_path), **variables})
        assert settings.otlp_traces_url is None
    assert open_tracing(None, "cog-triton", "model") is None
    assert triton_arguments(None, "cog-triton") == []
    environment: dict[str, str] = {}
    switch_tracing_on(environment)
    assert environment == {}


def test_the_path_is_put_to_an_endpoint_for_everything_alone(tmp_path: Path) -> None:
    base = load_settings({"HOME": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"})
    assert base.otlp_traces_url == "http://c:4318/v1/traces"
    whole = load_settings({"HOME": str(tmp_path), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/t"})
    assert whole.otlp_traces_url == "http://c:4318/t"
