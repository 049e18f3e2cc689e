"""The engine server's counts: exact, and continued by the next engine server."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.machine.root import SOURCE_ROOT
from errors.engines import EngineFailed
from runner.engines.protocol.messages import Cancel, Statistics, Submit
from runner.engines.server.metrics import EngineMetrics
from runner.observability.exposition import exposition
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import make_paced_directory
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

IDLE = Statistics(active=0, queued=0)
ENDED = "cog_triton_slot_ended_requests_total"
PHASE = "cog_triton_request_phase_seconds"


def read_counts(folder: Path) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in exposition(folder).splitlines() if not line.startswith("#")]
    return Counts((key, float(value)) for key, _, value in lines)


class Counts(dict[str, float]):
    def __missing__(self, key: str) -> float:
        return 0.0


@pytest.mark.parametrize("kind", ["paced", "transformers", "vllm", "tensorrt_llm"])
def test_every_series_of_the_kind_is_counted_from_the_start(tmp_path: Path, kind: str) -> None:
    EngineMetrics(kind, folder=tmp_path)
    counts = read_counts(tmp_path)
    assert len(counts) == 15 + 3 * 16 + (17 if kind == "tensorrt_llm" else 0)
    assert set(counts.values()) == {0}


def test_each_event_counts_once(tmp_path: Path) -> None:
    metrics = EngineMetrics("paced", restarts=2, folder=tmp_path)
    now_s = time.perf_counter()
    metrics.submitted(now_s - 0.02, now_s)
    metrics.submitted(None, now_s)
    metrics.received(7)
    metrics.drafted(3, 4)
    metrics.cancelled()
    metrics.ended("length")
    metrics.ended(EngineFailed(engine_kind="paced", reason="on request"))
    metrics.completed(now_s - 2.5, now_s - 0.5)
    metrics.counts(running=1, statistics=Statistics(active=4, queued=5, cache_used=0.25))
    counts = read_counts(tmp_path)
    assert {key: value for key, value in counts.items() if value and "_bucket" not in key} == {
        "cog_triton_slot_requests_total": 2,
        "cog_triton_slot_cancel_requests_total": 1,
        "cog_triton_slot_tokens_total": 7,
        'cog_triton_slot_draft_tokens_total{outcome="accepted"}': 3,
        'cog_triton_slot_draft_tokens_total{outcome="rejected"}': 4,
        "cog_triton_slot_running_requests": 1,
        f'{ENDED}{{reason="length"}}': 1,
        f'{ENDED}{{reason="error"}}': 1,
        "cog_triton_engine_restarts_total": 2,
        "cog_triton_engine_active_requests": 4,
        "cog_triton_engine_queued_requests": 5,
        "cog_triton_engine_cache_used_ratio": 0.25,
        **{f'{PHASE}_count{{phase="{phase}"}}': 1 for phase in ("queue", "engine", "relay")},
        f'{PHASE}_sum{{phase="queue"}}': pytest.approx(0.02),
        f'{PHASE}_sum{{phase="engine"}}': pytest.approx(2.0),
        f'{PHASE}_sum{{phase="relay"}}': pytest.approx(0.5, abs=0.4),
    }
    assert counts[f'{PHASE}_bucket{{le="1.0",phase="engine"}}'] == 0
    assert counts[f'{PHASE}_bucket{{le="3.0",phase="engine"}}'] == 1
    assert counts[f'{PHASE}_bucket{{le="+Inf",phase="engine"}}'] == 1


@pytest.mark.parametrize("sent_s", [-1.0, float("nan"), float("-inf")])
def test_a_time_that_no_clock_tells_is_not_counted(tmp_path: Path, sent_s: float) -> None:
    EngineMetrics("paced", folder=tmp_path).submitted(sent_s, time.perf_counter())
    counts = read_counts(tmp_path)
    assert counts[f'{PHASE}_count{{phase="queue"}}'] == counts[f'{PHASE}_sum{{phase="queue"}}'] == 0


def test_figures_of_an_iteration_have_nvidias_names_where_the_kind_has_them(tmp_path: Path) -> None:
    statistics = Statistics(active=0, queued=0, gauges={"used_num_blocks": 12.0, "another": 1.0})
    for kind, blocks in (("tensorrt_llm", 12), ("vllm", 0)):
        folder = tmp_path / kind
        folder.mkdir()
        metrics = EngineMetrics(kind, folder=folder)
        metrics.counts(running=0, statistics=statistics)
        counts = read_counts(folder)
        key = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"}'
        assert counts[key] == blocks
        assert any("trt" in name for name in counts) == bool(blocks)
        metrics.close()


def test_the_next_engine_server_continues_the_counters(tmp_path: Path) -> None:
    first = EngineMetrics("paced", folder=tmp_path)
    for _ in range(5):
        first.submitted(None, 0.0)
    first.ended("length")
    first.ended("stop")
    first.received(30)
    first.counts(running=3, statistics=Statistics(active=3, queued=1))
    assert read_counts(tmp_path)["cog_triton_slot_running_requests"] == 3
    first.close()
    second = EngineMetrics("paced", restarts=1, folder=tmp_path)
    second.submitted(None, 0.0)
    second.ended("length")
    second.received(4)
    counts = read_counts(tmp_path)
    assert counts["cog_triton_slot_requests_total"] == 6
    assert counts["cog_triton_slot_tokens_total"] == 34
    assert counts["cog_triton_engine_restarts_total"] == 1
    assert counts["cog_triton_slot_running_requests"] == 0
    # Three of the first one's requests were never confirmed.
    assert {key: value for key, value in counts.items() if key.startswith(ENDED) and value} == {
        f'{ENDED}{{reason="length"}}': 2,
        f'{ENDED}{{reason="stop"}}': 1,
        f'{ENDED}{{reason="error"}}': 3,
    }


def test_a_folder_that_takes_no_file_does_not_end_the_engine(tmp_path: Path) -> None:
    metrics = EngineMetrics("paced", folder=tmp_path / "missing")
    metrics.received(3)
    assert 3 in metrics.counts(running=0, statistics=IDLE)


def test_a_killed_engine_servers_counts_go_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.mkdir()
    directory = make_paced_directory(tmp_path / "model", 200)
    server = EngineServerUnderTest("paced", directory, {}, tmp_path, starts=False)
    server._message = msgspec.structs.replace(server._message, metrics_dir=path)
    server.start()
    client = server.connect()
    client.send(Submit(1, [5, 6], 4), Submit(2, [5, 6], 4000), Submit(3, [5, 6], 4000), Cancel(3))
    for reason in ("cancelled", "length"):
        wait_until(lambda reason=reason: read_counts(path)[f'{ENDED}{{reason="{reason}"}}'] == 1)
    wait_until(lambda: read_counts(path)["cog_triton_slot_running_requests"] == 1)
    server.kill()
    client.close()
    counts = read_counts(path)
    assert [counts[f'{PHASE}_count{{phase="{phase}"}}'] for phase in ("engine", "relay")] == [1, 1]
    server._message = msgspec.structs.replace(server._message, restarts=1)
    server.start()
    client = server.connect()
    again = wait_until(lambda: (now := read_counts(path))["cog_triton_engine_restarts_total"] and now)
    assert again["cog_triton_slot_running_requests"] == 0
    assert again["cog_triton_slot_tokens_total"] == counts["cog_triton_slot_tokens_total"]
    assert again["cog_triton_slot_requests_total"] == 3
    assert again[f'{ENDED}{{reason="error"}}'] == 1
    client.close()
    server.stop()


def test_the_engine_server_needs_no_package_that_engine_environments_lack() -> None:
    absent = ["opentelemetry", "prometheus_client", "pydantic", "httpx", "urllib3"]
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import runner.engines.server.main"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=SOURCE_ROOT)
