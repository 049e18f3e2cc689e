"""Traced requests get a span of the engine server, whatever their end; others get none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from errors.wire import ExitReason
from runner.engines.paced.adapter import load
from runner.engines.protocol.messages import Failed, Finished, Sampling, Submit, TokenLogProb
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Requests
from runner.observability import otlp_json
from runner.observability.metrics import ENGINE_PHASE_TIMES, samples
from runner.observability.otlp_json import OtlpTarget, SpanExporter
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.otlp_receiver import OtlpReceiver, Span
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

TRACE, PARENT = "a" * 32, "c" * 16
SAMPLED = f"00-{TRACE}-{PARENT}-01"
RATE = 200.0


class Client:
    """What a client's connection gets."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.end: Finished | Failed | None = None
        self.has_tokens = threading.Event()
        self.has_ended = threading.Event()

    def respond(
        self, request_id: int, tokens: list[int], log_probs: list[TokenLogProb], end: Finished | Failed | None
    ) -> None:
        self.tokens += tokens
        self.end = end

    def flush(self) -> None:
        if self.tokens:
            self.has_tokens.set()
        if self.end is not None:
            self.has_ended.set()


class Server:
    """An engine server's requests on a paced engine, in this process."""

    def __init__(self, engine_dir: Path, url: str) -> None:
        self.metrics = EngineMetrics("paced")
        self.exporter = SpanExporter(
            OtlpTarget(f"{url}/v1/traces", "cog-triton-engine"), self.metrics.dropped
        )
        self.requests = Requests("paced", self.metrics, ExitReason(), self.exporter)
        self.engine = load(engine_dir, self.requests, {})
        self.requests.serve(self.engine)

    def run(self, *, is_cancelled: bool = False, **fields: object) -> Client:
        client = Client()
        request = self.requests.open(Submit(1, [5, 6, 7], **{"max_tokens": 4, **fields}), client)  # type: ignore[arg-type]
        self.requests.submit(request)
        if is_cancelled:
            assert client.has_tokens.wait(60)
            self.requests.cancel(request)
        assert client.has_ended.wait(60)
        return client


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as started:
        yield started


@pytest.fixture(scope="module")
def server(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp_json, "_BATCH_INTERVAL_S", 0.01)
        model = make_paced_model(tmp_path_factory.mktemp("spans"), RATE)
        server = Server(model.directory, receiver.url)
        yield server
        server.engine.close()
        server.requests.close()


def next_span(receiver: OtlpReceiver) -> Span:
    (span,) = wait_until(lambda: list(receiver.spans))
    receiver.spans.clear()
    return span


def test_a_finished_request_has_its_span_under_its_clients(server: Server, receiver: OtlpReceiver) -> None:
    client = server.run(traceparent=SAMPLED, sent_s=time.perf_counter() - 0.5, returns_times=True)
    span = next_span(receiver)
    assert isinstance(client.end, Finished)
    assert client.end.times_s is not None
    assert (span.service, span.name, span.is_error) == ("cog-triton-engine", "engine", False)
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
    assert int(span.span_id, 16) not in (0, int(PARENT, 16))
    assert span.attributes["gen_ai.usage.input_tokens"] == 3
    assert span.attributes["gen_ai.usage.output_tokens"] == len(client.tokens) == 4
    assert [each.string_value for each in span.attributes["gen_ai.response.finish_reasons"].values] == [
        "length"
    ]
    assert 0.5 <= span.attributes["cog_triton.queue.seconds"] < 60
    arrival_s, last_token_s = client.end.times_s
    assert (span.end_ns - span.start_ns) / 1e9 == pytest.approx(last_token_s - arrival_s, abs=1e-5)
    assert (span.end_ns - span.start_ns) / 1e9 >= 3 / RATE
    assert abs(span.end_ns - time.time_ns()) < 60e9


def test_a_cancelled_request_says_so(server: Server, receiver: OtlpReceiver) -> None:
    client = server.run(is_cancelled=True, max_tokens=4000, traceparent=SAMPLED)
    span = next_span(receiver)
    assert span.attributes["cog_triton.cancelled"] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == len(client.tokens)
    assert "gen_ai.response.finish_reasons" not in span.attributes


def test_a_rejected_request_has_the_code_and_no_sentence(server: Server, receiver: OtlpReceiver) -> None:
    client = server.run(traceparent=SAMPLED, lora_name="a name that nobody may read")
    span = next_span(receiver)
    assert isinstance(client.end, Failed)
    assert client.end.error.code == "E1104"
    assert span.is_error
    assert span.attributes["error.type"] == "E1104"
    assert "nobody" not in span.text


def test_a_request_that_is_not_recorded_has_none(server: Server, receiver: OtlpReceiver) -> None:
    for traceparent in ("", f"00-{TRACE}-{PARENT}-00", "nonsense"):
        server.run(traceparent=traceparent)
    server.run(traceparent=SAMPLED, max_tokens=2)
    assert next_span(receiver).attributes["gen_ai.usage.output_tokens"] == 2


def test_the_relays_phase_ends_when_the_end_was_sent(server: Server) -> None:
    """As the engine's, it is counted for each completed request."""

    def counts() -> dict[str, float]:
        found = samples(ENGINE_PHASE_TIMES, server.requests.statistics().counts)
        return {sample.labels["phase"]: sample.value for sample in found if sample.name.endswith("_count")}

    before = counts()
    server.run()
    server.run(is_cancelled=True, max_tokens=4000)

    def is_counted() -> bool:
        after = counts()
        return [after[phase] - before[phase] for phase in ("engine", "relay")] == [1, 1]

    wait_until(is_counted)


def test_requests_that_a_broken_engine_takes_along_have_their_spans(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    """The process ends right after it has sent them."""
    model = make_paced_model(tmp_path / "model", RATE)
    variables = {"COG_TRITON_FAULTS": "requests"}
    process = EngineServerUnderTest(
        "paced", model.directory, {}, tmp_path, starts=False, hang_timeout_s=0.2, environment=variables
    )
    traces = OtlpTarget(f"{receiver.url}/v1/traces", "cog-triton-engine")
    process._message = msgspec.structs.replace(process._message, traces=traces)
    process.start()
    client = process.connect()
    client.send(Submit(1, [5, 6], 4000, Sampling(seed=990002), traceparent=SAMPLED))
    while not isinstance(message := client.receive(), Failed):
        pass
    assert message.error.code == "E2107"
    span = next_span(receiver)
    assert (span.is_error, span.attributes["error.type"]) == (True, "E2107")
    assert process.process.wait(60) == 70
    client.close()
    process.stop()
