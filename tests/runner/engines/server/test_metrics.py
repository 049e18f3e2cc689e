"""The engine server's counts: by series, exact, and continued by the next engine server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.machine.root import SOURCE_ROOT
from errors.engines import EngineFailed
from runner.engines.protocol.messages import Finished, Statistics, Submit
from runner.engines.server.metrics import EngineMetrics
from runner.observability import engine_metrics
from runner.observability.engine_metrics import (
    FAMILIES,
    PHASES,
    counts_to_continue,
    families_of,
    read_counts,
    series_of,
    write_counts,
)
from runner.observability.otlp_json import OtlpTarget
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.otlp_receiver import OtlpReceiver
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import wait_until

IDLE = Statistics(active=0, queued=0)
ENDED = "cog_triton_slot_ended_requests_total"
PHASE = "cog_triton_request_phase_seconds"


@pytest.mark.parametrize("kind", ["paced", "transformers", "vllm", "tensorrt_llm"])
def test_every_series_of_the_kind_is_counted_from_the_start(kind: str) -> None:
    counts = EngineMetrics(kind).counts(running=0, statistics=IDLE)
    assert set(counts) == {
        series.key for family in (*families_of(kind), PHASES) for series in series_of(family)
    }
    assert set(counts.values()) == {0}


def test_each_event_counts_once() -> None:
    metrics = EngineMetrics("paced", restarts=2)
    now_s = time.perf_counter()
    metrics.submitted(now_s - 0.02, now_s)
    metrics.submitted(None, now_s)
    metrics.tokens += 7
    metrics.cancelled()
    metrics.ended("length")
    metrics.ended(EngineFailed(engine_kind="paced", reason="on request"))
    metrics.completed(now_s - 2.5, now_s - 0.5)
    metrics.dropped(3)
    counts = metrics.counts(running=1, statistics=Statistics(active=4, queued=5, cache_used=0.25))
    assert {key: value for key, value in counts.items() if value and "_bucket" not in key} == {
        "cog_triton_slot_requests_total": 2,
        "cog_triton_slot_cancel_requests_total": 1,
        "cog_triton_slot_tokens_total": 7,
        "cog_triton_slot_running_requests": 1,
        f'{ENDED}{{reason="length"}}': 1,
        f'{ENDED}{{reason="error"}}': 1,
        "cog_triton_engine_restarts_total": 2,
        "cog_triton_engine_dropped_spans_total": 3,
        "cog_triton_engine_active_requests": 4,
        "cog_triton_engine_queued_requests": 5,
        "cog_triton_engine_cache_used_ratio": 0.25,
        **{f'{PHASE}_count{{phase="{phase}"}}': 1 for phase in ("queue", "engine", "relay")},
        f'{PHASE}_sum{{phase="queue"}}': pytest.approx(0.02),
        f'{PHASE}_sum{{phase="engine"}}': pytest.approx(2.0),
        f'{PHASE}_sum{{phase="relay"}}': pytest.approx(0.5, abs=0.4),
    }
    assert counts[f'{PHASE}_bucket{{phase="engine",le="1.0"}}'] == 0
    assert counts[f'{PHASE}_bucket{{phase="engine",le="3.0"}}'] == 1
    assert counts[f'{PHASE}_bucket{{phase="engine",le="+Inf"}}'] == 1


@pytest.mark.parametrize("sent_s", [-1.0, float("nan"), float("-inf")])
def test_a_time_that_no_clock_tells_is_not_counted(sent_s: float) -> None:
    metrics = EngineMetrics("paced")
    metrics.submitted(sent_s, time.perf_counter())
    counts = metrics.counts(running=1, statistics=IDLE)
    assert counts[f'{PHASE}_count{{phase="queue"}}'] == counts[f'{PHASE}_sum{{phase="queue"}}'] == 0


def test_figures_of_an_iteration_have_nvidias_names_where_the_kind_has_them() -> None:
    statistics = Statistics(active=0, queued=0, gauges={"used_num_blocks": 12.0, "another": 1.0})
    counts = EngineMetrics("tensorrt_llm").counts(running=0, statistics=statistics)
    assert counts['nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"}'] == 12
    assert not [key for key in EngineMetrics("vllm").counts(running=0, statistics=statistics) if "trt" in key]


def test_the_next_engine_server_continues_the_counters(tmp_path: Path) -> None:
    path = tmp_path / engine_metrics.FILE_NAME
    assert read_counts(path) == {}
    first = EngineMetrics("paced", earlier=counts_to_continue(path))
    for _ in range(5):
        first.submitted(None, 0.0)
    first.ended("length")
    first.ended("stop")
    first.tokens = 30
    write_counts(path, first.counts(running=3, statistics=Statistics(active=3, queued=1)))
    assert read_counts(path)["cog_triton_slot_running_requests"] == 3
    second = EngineMetrics("paced", restarts=1, earlier=counts_to_continue(path))
    second.submitted(None, 0.0)
    second.ended("length")
    second.tokens = 4
    counts = second.counts(running=0, statistics=IDLE)
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


def test_an_engine_server_that_writes_no_more_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / engine_metrics.FILE_NAME
    metrics = EngineMetrics("paced")
    metrics.submitted(None, 0.0)
    counts = metrics.counts(running=1, statistics=Statistics(active=1, queued=2))
    path.write_text(json.dumps([time.monotonic() - 2 * engine_metrics._STALE_S, counts]))
    found = read_counts(path)
    assert {key: value for key, value in found.items() if value} == {"cog_triton_slot_requests_total": 1}
    assert set(found) == set(counts)


def test_a_series_is_written_as_prometheus_does() -> None:
    keys = [series.key for series in series_of(PHASES)]
    assert keys[0] == f'{PHASE}_bucket{{phase="queue",le="0.0001"}}'
    assert len(keys) == len(set(keys)) == 3 * (len(PHASES.bounds) + 3)
    assert all(len(list(series_of(family))) == len(family.children) for family in FAMILIES)


def test_a_killed_engine_servers_counts_go_on_and_its_spans_are_sent_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / engine_metrics.FILE_NAME
    model = make_paced_model(tmp_path / "model", 200.0)
    folder = tmp_path / "server"
    folder.mkdir()
    with OtlpReceiver() as receiver:
        server = EngineServerUnderTest("paced", model.directory, {}, folder, starts=False)
        traces = OtlpTarget(f"{receiver.url}/v1/traces", "mine-engine")
        server._message = msgspec.structs.replace(server._message, metrics_path=path, traces=traces)
        server.start()
        client = server.connect()
        client.send(Submit(1, [5, 6], 4), Submit(2, [5, 6], 4000))
        wait_until(lambda: (counts := read_counts(path)) and counts[f'{ENDED}{{reason="length"}}'] == 1)
        counts = wait_until(lambda: (now := read_counts(path))["cog_triton_slot_tokens_total"] > 4 and now)
        assert counts["cog_triton_slot_requests_total"] == 2
        assert counts["cog_triton_slot_running_requests"] == 1
        assert counts[f'{PHASE}_count{{phase="relay"}}'] == 1
        server.kill()
        client.close()
        counts = read_counts(path)
        server._message = msgspec.structs.replace(server._message, restarts=1)
        server.start()
        client = server.connect()
        again = wait_until(lambda: (now := read_counts(path))["cog_triton_engine_restarts_total"] and now)
        assert again["cog_triton_slot_running_requests"] == 0
        assert again["cog_triton_slot_tokens_total"] == counts["cog_triton_slot_tokens_total"]
        assert again["cog_triton_slot_requests_total"] == 2
        assert again[f'{ENDED}{{reason="error"}}'] == 1
        client.send(Submit(1, [5, 6], 4, traceparent=f"00-{'a' * 32}-{'c' * 16}-01"))
        while not isinstance(client.receive(), Finished):
            pass
        client.close()
        server.stop()
        (span,) = receiver.spans
    assert (span.service, span.parent_id) == ("mine-engine", "c" * 16)


def test_the_engine_server_needs_no_package_that_engine_environments_lack() -> None:
    absent = ["opentelemetry", "prometheus_client", "pydantic", "httpx", "urllib3"]
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import runner.engines.server.main"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=SOURCE_ROOT)
