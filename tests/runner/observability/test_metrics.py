"""What is counted is right, other processes read it at any time, and it is told as Prometheus wants it."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.main import main
from runner.engines.protocol.messages import Statistics
from runner.engines.server.metrics import EngineMetrics
from runner.observability import metrics
from runner.observability.exposition import exposition
from runner.observability.meter import Meter, RequestMeter, clear_folder
from runner.observability.metrics import METRICS, metrics_of
from tests.runner.servers import CogUnderTest, triton_environment, wait_until

SAMPLE = re.compile(r"^(\w+)(?:{(.*)})? (\S+)$", re.MULTILINE)

COUNTS_AND_ENDS = """
import sys
from pathlib import Path
from runner.observability import metrics
from runner.observability.meter import Meter
meter = Meter("openai", Path(sys.argv[1]))
meter.add(metrics.ACTIVE, 3)
meter.add(metrics.OUTPUT_TOKENS, 5)
print("counted", flush=True)
sys.stdin.read()
"""


def samples(text: str) -> dict[str, float]:
    """``name{labels}`` -> value."""
    return {f"{name}{{{labels}}}": float(value) for name, labels, value in SAMPLE.findall(text)}


def test_every_request_ends_in_one_outcome_and_none_stays_active(tmp_path: Path) -> None:
    meter = Meter("cog", tmp_path)
    for is_finished, code in ((True, ""), (False, ""), (False, "E2101"), (False, "E9999")):
        request = RequestMeter(meter)
        request.began()
        counts = {"input_tokens": 2, "cached_tokens": 1, "output_tokens": 3}
        request.ended(is_finished=is_finished, error=code, **counts, detokenize_s=0.0)
    found = samples(exposition(tmp_path))
    for outcome, code in (
        ("succeeded", ""),
        ("cancelled", ""),
        ("failed", "E2101"),
        ("failed", "unexpected"),
    ):
        assert found[f'cog_triton_requests_total{{api="cog",code="{code}",outcome="{outcome}"}}'] == 1
    assert found['cog_triton_active_requests{api="cog"}'] == 0
    assert found['cog_triton_input_tokens_total{api="cog"}'] == 8
    assert found['cog_triton_cached_input_tokens_total{api="cog"}'] == 4
    assert found['cog_triton_output_tokens_total{api="cog"}'] == 12


def test_tokens_that_come_together_share_the_time_since_those_before(tmp_path: Path) -> None:
    meter = Meter("cog", tmp_path)
    request = RequestMeter(meter, arrived_s=100.0)
    request.began()
    for num_tokens, now_s in ((2, 100.25), (4, 100.33), (1, 100.93)):
        request.received(num_tokens, now_s)
    request.ended(is_finished=True, error="", input_tokens=1, output_tokens=7, detokenize_s=0.001)
    found = samples(exposition(tmp_path))
    name = metrics.INTER_TOKEN_LATENCY.name
    assert found[f'{name}_count{{api="cog"}}'] == 5
    assert found[f'{name}_sum{{api="cog"}}'] == pytest.approx(0.68)
    assert found[f'{name}_bucket{{api="cog",le="0.02"}}'] == 4
    assert found[f'{name}_bucket{{api="cog",le="0.5"}}'] == 4
    assert found[f'{name}_bucket{{api="cog",le="1.0"}}'] == 5
    assert found[f'{metrics.TIME_TO_FIRST_TOKEN.name}_sum{{api="cog"}}'] == pytest.approx(0.25)


@pytest.mark.parametrize(("seconds", "bound"), [(0.001, "0.001"), (0.0011, "0.0025"), (61.0, "+Inf")])
def test_a_bucket_holds_what_equals_its_bound(tmp_path: Path, seconds: float, bound: str) -> None:
    Meter("cog", tmp_path).observe(metrics.QUEUE, seconds)
    found = samples(exposition(tmp_path))
    buckets = {
        labels: value for labels, value in found.items() if labels.startswith(f"{metrics.QUEUE.name}_bucket")
    }
    assert next(labels for labels, value in buckets.items() if value == 1).endswith(f'le="{bound}"}}')


def test_what_an_ended_process_counted_stays_but_it_holds_nothing_any_more(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNTS_AND_ENDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"counted\n"
        ours = Meter("openai", tmp_path)
        ours.add(metrics.ACTIVE)
        alive = samples(exposition(tmp_path))
        process.kill()
    ended = samples(exposition(tmp_path))
    assert alive['cog_triton_active_requests{api="openai"}'] == 4
    assert ended['cog_triton_active_requests{api="openai"}'] == 1
    assert ended['cog_triton_output_tokens_total{api="openai"}'] == 5
    ours.close()


def test_a_runner_starts_from_zero(tmp_path: Path) -> None:
    Meter("cog", tmp_path).add(metrics.OUTPUT_TOKENS, 7)
    (tmp_path / "cog-1").write_bytes(b"half a file")
    engine_counts(tmp_path)
    assert samples(exposition(tmp_path))['cog_triton_output_tokens_total{api="cog"}'] == 7
    clear_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


TRITON = """\
# HELP nv_inference_count Number of inferences
# TYPE nv_inference_count counter
nv_inference_count{model="tensorrt_llm",version="1"} 3
"""
COPIES = """\
# HELP cog_triton_slot_tokens_total Output tokens received from the engine
# TYPE cog_triton_slot_tokens_total counter
cog_triton_slot_tokens_total 5
# HELP cog_triton_request_phase_seconds_bucket Time of a request
# TYPE cog_triton_request_phase_seconds_bucket counter
cog_triton_request_phase_seconds_bucket{le="+Inf",phase="engine"} 2
# TYPE cog_triton_request_phase_seconds_sum counter
cog_triton_request_phase_seconds_sum{phase="engine"} 0.5
# TYPE cog_triton_request_phase_seconds_count counter
cog_triton_request_phase_seconds_count{phase="engine"} 2
"""
NVIDIA = """\
# TYPE nv_trt_llm_general_metrics gauge
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} 8
"""


def engine_counts(folder: Path, kind: str = "paced") -> EngineMetrics:
    """Return what an engine server counts that has completed a request of 7 tokens."""
    engine = EngineMetrics(kind, restarts=1, folder=folder)
    engine.submitted(None, 0.0)
    engine.received(7)
    engine.ended("length")
    engine.completed(1.0, 1.5)
    engine.counts(running=0, statistics=Statistics(2, 3, 0.5, {"iter": 9.0}))
    return engine


def with_triton(folder: Path, told: str) -> str:
    """Return the exposition beside a Triton whose metrics port answers this."""

    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told.encode())

    with HTTPServer(("127.0.0.1", 0), Triton) as server:
        Thread(target=server.handle_request).start()
        return exposition(folder, f"http://127.0.0.1:{server.server_port}/metrics")


@pytest.mark.parametrize("kind", ["paced", "tensorrt_llm"])
def test_the_engine_servers_metrics_are_told_once_and_tritons_others_as_they_are(
    tmp_path: Path, kind: str
) -> None:
    Meter("cog", tmp_path)
    engine = engine_counts(tmp_path, kind)
    nvidia = NVIDIA if kind == "tensorrt_llm" else ""
    text = with_triton(tmp_path, TRITON + COPIES + nvidia)
    assert text.endswith("\n" + TRITON)
    types = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert sorted(types) == sorted(
        [
            *{(metric.name, metric.kind) for metric in (*METRICS, *metrics_of(kind))},
            ("cog_triton_triton_up", "gauge"),
            ("nv_inference_count", "counter"),
        ]
    )
    (phases,) = (each for each in text_string_to_metric_families(text) if each.name == metrics.PHASES.name)
    counts = {
        sample.labels["phase"]: sample.value for sample in phases.samples if sample.name.endswith("_count")
    }
    assert counts == {"tokenize": 0, "detokenize": 0, "queue": 0, "engine": 1, "relay": 1}
    found = samples(text)
    assert found["cog_triton_triton_up{}"] == 1
    assert found["cog_triton_slot_tokens_total{}"] == 7
    assert found["cog_triton_engine_restarts_total{}"] == 1
    assert found["cog_triton_engine_queued_requests{}"] == 3
    assert found['cog_triton_slot_ended_requests_total{reason="length"}'] == 1
    if nvidia:
        key = 'nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"}'
        assert found[key] == 9
    engine.close()


def test_a_triton_without_an_engine_server_tells_its_own(tmp_path: Path) -> None:
    """With NVIDIA's C++ backend Triton holds the engine."""
    assert with_triton(tmp_path, NVIDIA).endswith("\n" + NVIDIA)


def test_a_triton_that_does_not_answer_is_told_and_nothing_of_ours_is_missing(tmp_path: Path) -> None:
    Meter("cog", tmp_path)
    engine_counts(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    text = exposition(tmp_path, f"http://127.0.0.1:{port}/metrics")
    assert samples(text)["cog_triton_triton_up{}"] == 0
    assert samples(text)["cog_triton_slot_tokens_total{}"] == 7
    assert text.startswith(exposition(tmp_path))


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool (Debian: apt-get install prometheus)"
)
def test_prometheus_own_checker_finds_nothing_to_say(tmp_path: Path) -> None:
    meter = Meter("cog", tmp_path)
    meter.ended("failed", "E1001")
    engine_counts(tmp_path, "tensorrt_llm")
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=exposition(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.servers
def test_all_of_a_runner_is_told_in_one_text(cog: CogUnderTest) -> None:
    read = reader(cog)
    before = read()
    assert cog.predict(prompt="What is machine learning?", max_tokens=10)["status"] == "succeeded"
    assert cog.predict(prompt=" ")["status"] == "failed"
    name = "cog_triton_requests_total"
    failed = f'{name}{{api="cog",code="E1001",outcome="failed"}}'
    after = wait_until(lambda: (text := read()) and samples(text)[failed] > samples(before)[failed] and text)
    new = {key: value - samples(before).get(key, 0) for key, value in samples(after).items()}
    assert new[failed] == new[f'{name}{{api="cog",code="",outcome="succeeded"}}'] == 1
    assert new['cog_triton_output_tokens_total{api="cog"}'] == 10
    assert new['cog_triton_request_phase_seconds_count{api="cog",phase="tokenize"}'] == 1
    assert samples(after)["cog_triton_triton_up{}"] == 1
    wait_until(lambda: samples(read())["cog_triton_slot_tokens_total{}"] >= 10)
    families = re.findall(r"^# TYPE (\w+)", after, re.MULTILINE)
    assert len(families) == len(set(families))
    assert {"nv_inference_request_success", *(metric.name for metric in METRICS)} <= set(families)


@pytest.mark.servers
def test_a_client_that_goes_away_is_counted_as_cancelled(cog: CogUnderTest) -> None:
    read = reader(cog)
    key = 'cog_triton_requests_total{api="cog",code="",outcome="cancelled"}'
    before = samples(read())[key]
    body = {"input": {"prompt": "hi", "max_tokens": 10000}}
    headers = {"Accept": "text/event-stream"}
    with cog.client.stream("POST", "/predictions", json=body, headers=headers) as response:
        wait_until(lambda: samples(read())['cog_triton_active_requests{api="cog"}'] == 1)
        response.close()
    wait_until(lambda: samples(read())[key] == before + 1)
    assert samples(read())['cog_triton_active_requests{api="cog"}'] == 0


@pytest.mark.servers
def test_the_command_prints_them_or_says_why_not(
    cog: CogUnderTest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment(cog).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(cog.folder))
    assert main(["metrics"]) == 0
    assert "cog_triton_triton_up 1" in capsys.readouterr().out
    monkeypatch.setenv("TRITON_HTTP_PORT", "2")
    assert main(["metrics"]) == 2
    assert capsys.readouterr().err.startswith("E1008 MissingRequirement: a runner of this user")


def environment(cog: CogUnderTest) -> dict[str, str]:
    return triton_environment(cog.triton_http_port, 1, cog.triton_metrics_port)


def reader(cog: CogUnderTest) -> Callable[[], str]:
    """Read all metrics of a Cog server under test."""
    return lambda: exposition(cog.metrics_dir, f"http://127.0.0.1:{cog.triton_metrics_port}/metrics")
