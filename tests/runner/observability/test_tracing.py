"""One trace holds a client's span, Cog's and ours, with those of the phases, as a collector decodes them."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from errors.settings import InvalidSetting
from runner.cog_server.__main__ import switch_tracing_on
from runner.observability.logs import GenerationSummary
from runner.observability.tracing import Tracing, open_tracing, triton_arguments
from runner.settings.settings import load_settings
from tests.runner.otlp_receiver import OtlpReceiver, Span
from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, triton_pids, wait_until

PROMPT = "A prompt that nobody else may read."
PHASES = ("tokenize", "queue", "engine", "relay")


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as started:
        yield started


@pytest.fixture(scope="module")
def traced(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogUnderTest]:
    folder = tmp_path_factory.mktemp("traced")
    model = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server = CogUnderTest(model, folder, **variables)
    yield server
    server.close()


def trace_of(cog: CogUnderTest, receiver: OtlpReceiver, flags: str = "01", **inputs: object) -> list[Span]:
    """Return the spans of one prediction that a client asks for within a trace of its own."""
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{'c' * 16}-{flags}"}
    cog.client.post("/predictions", json={"input": inputs}, headers=headers)
    if flags == "01":
        wait_until(lambda: is_whole(receiver.trace(trace_id)))
    return receiver.trace(trace_id)


def is_whole(spans: list[Span]) -> bool:
    """Nothing is on its way any more: every span's parent is there, or is the client's."""
    known = {span.span_id for span in spans} | {"c" * 16}
    names = {span.name for span in spans}
    has_ends = {"POST /predictions", "text_completion paced", "engine"} <= names
    return has_ends and all(span.parent_id in known for span in spans)


@pytest.mark.servers
def test_one_trace_goes_from_the_client_through_cog_and_us_to_the_engine(
    traced: CogUnderTest, receiver: OtlpReceiver
) -> None:
    spans = trace_of(traced, receiver, prompt=PROMPT, max_tokens=20, temperature=0.5)
    by_id = {span.span_id: span for span in spans}
    ours = next(span for span in spans if span.name == "text_completion paced")
    (engine,) = (span for span in spans if span.name == "engine")
    path = [engine]
    while path[-1].parent_id in by_id:
        path.append(by_id[path[-1].parent_id])
    assert path[-1].parent_id == "c" * 16
    assert path[-1].name == "POST /predictions"
    assert path[1] == ours
    assert {span.service for span in path} == {"cog-triton"}
    assert not [span for span in spans if span.service == "cog-triton-triton"]
    assert engine.attributes["gen_ai.usage.input_tokens"] == ours.attributes["gen_ai.usage.input_tokens"]
    assert engine.attributes["gen_ai.usage.output_tokens"] == 20
    assert engine.attributes["gen_ai.response.finish_reasons"].values[0].string_value == "length"
    assert 0 <= engine.attributes["cog_triton.queue.seconds"] < 60


@pytest.mark.servers
def test_a_request_by_triton_has_tritons_spans_alone(traced: CogUnderTest, receiver: OtlpReceiver) -> None:
    spans = trace_of_triton(traced, receiver)
    assert {span.service for span in spans} == {"cog-triton-triton"}


def trace_of_triton(cog: CogUnderTest, receiver: OtlpReceiver) -> list[Span]:
    """Return the spans of a request by Triton.

    NOTE: Triton's exporter (opentelemetry-cpp 1.13) drops what it can't send within 10 s, and an error of
    libcurl's blocks it for good: HttpClient::resetMultiHandle takes a lock twice. A new Triton has a new one.
    """
    for _ in range(3):
        with suppress(AssertionError):
            return trace_of_this_triton(cog, receiver)
        print(f"no span came; the last lines of Triton and its runner:\n{cog.log()[-4000:]}")
        for pid in triton_pids(cog.triton_http_port):
            os.kill(pid, signal.SIGKILL)
    raise AssertionError("no span came from any of three Tritons")


def trace_of_this_triton(cog: CogUnderTest, receiver: OtlpReceiver) -> list[Span]:
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{'c' * 16}-01"}
    url = f"http://{HOST}:{cog.triton_http_port}/v2/models/ensemble/generate"
    body = {"text_input": PROMPT, "max_tokens": 2}
    wait_until(lambda: httpx.post(url, json=body, headers=headers, timeout=DEADLINE_S).is_success)
    return wait_until(lambda: receiver.trace(trace_id), timeout_s=60)


@pytest.mark.servers
def test_a_generations_span_tells_its_phases_and_counts_by_the_conventions(
    traced: CogUnderTest, receiver: OtlpReceiver
) -> None:
    spans = trace_of(traced, receiver, prompt=PROMPT, max_tokens=20, temperature=0.5)
    ours = next(span for span in spans if span.name == "text_completion paced")
    assert ours.attributes["gen_ai.operation.name"] == "text_completion"
    assert ours.attributes["gen_ai.request.max_tokens"] == 20
    assert ours.attributes["gen_ai.request.temperature"] == 0.5
    assert ours.attributes["gen_ai.usage.output_tokens"] == 20
    assert 1 < ours.attributes["gen_ai.usage.input_tokens"] <= len(PROMPT)
    assert ours.attributes["gen_ai.response.finish_reasons"].values[0].string_value == "length"
    phases = {span.name: span for span in spans if span.parent_id == ours.span_id and span.name in PHASES}
    assert set(phases) == set(PHASES)
    for before, after in itertools.pairwise(PHASES):
        assert phases[before].end_ns == pytest.approx(phases[after].start_ns, abs=1e5)
    assert phases["engine"].end_ns - phases["engine"].start_ns >= 19 / TOKENS_PER_SECOND * 1e9
    assert ours.start_ns <= phases["tokenize"].start_ns <= phases["relay"].end_ns <= ours.end_ns


@pytest.mark.servers
def test_a_failure_is_told_by_its_code(traced: CogUnderTest, receiver: OtlpReceiver) -> None:
    trace_id = os.urandom(16).hex()
    headers = {"traceparent": f"00-{trace_id}-{'c' * 16}-01"}
    body = {"input": {"prompt": PROMPT * 1000}}
    assert traced.client.post("/predictions", json=body, headers=headers).json()["status"] == "failed"
    wait_until(lambda: [span for span in receiver.trace(trace_id) if span.name.startswith("text_")])
    ours = next(span for span in receiver.trace(trace_id) if span.name.startswith("text_"))
    assert ours.is_error
    assert ours.attributes["error.type"] == "E1002"


@pytest.mark.servers
def test_no_span_holds_a_text(traced: CogUnderTest, receiver: OtlpReceiver) -> None:
    trace_of(traced, receiver, prompt=PROMPT, max_tokens=2, stop_sequences="private")
    everything = "".join(span.text for span in receiver.spans)
    assert PROMPT not in everything
    assert "private" not in everything


@pytest.mark.servers
def test_a_client_that_keeps_no_trace_gets_none_anywhere(
    traced: CogUnderTest, receiver: OtlpReceiver
) -> None:
    assert trace_of(traced, receiver, "00", prompt=PROMPT, max_tokens=2) == []
    trace_of(traced, receiver, prompt=PROMPT, max_tokens=2)  # What came before it has been sent by then.
    assert {span.service for span in receiver.spans} <= {"cog-triton", "cog-triton-triton"}


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
        assert span.attributes is not None
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ],
)
def test_what_traces_can_t_be_sent_by_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        load_settings({"HOME": str(tmp_path), name: value})
