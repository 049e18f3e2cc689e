"""Where a request's time went: in its own metrics when asked, and on the metrics port for all."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from runner.observability.metrics import ENGINE_PHASES as PHASES
from runner.observability.metrics import PHASE_BOUNDS_S as BOUNDS_S
from runner.observability.metrics import PHASE_SECONDS as NAME
from tests.runner.servers import DEADLINE_S, SLOT, CogUnderTest, TritonUnderTest, wait_until

QUESTION = "What is machine learning?"


def histograms(metrics: str) -> dict[tuple[str, str], float]:
    """(phase, bound or _sum or _count) -> value."""
    found = {}
    for kind, labels, value in re.findall(rf"^{NAME}(_\w+){{(.*)}} (\S+)$", metrics, re.MULTILINE):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[label["phase"], label.get("le", kind)] = float(value)
    return found


@pytest.mark.servers
def test_a_prediction_tells_its_phases_when_asked(cog: CogUnderTest) -> None:
    metrics = cog.predict(prompt=QUESTION, max_tokens=40, log_performance_metrics=True)["metrics"]
    phases = {phase: metrics[f"{phase}_time"] for phase in ("tokenize", *PHASES, "detokenize")}
    assert all(seconds >= 0 for seconds in phases.values())
    # 40 tokens at 200 a second; the engine's clock is the only one that takes any time worth speaking of.
    assert phases["engine"] >= 0.19
    in_order = sum(phases[name] for name in ("tokenize", "queue", "engine", "relay"))
    assert in_order == pytest.approx(40 / metrics["tokens_per_second"], rel=0.05, abs=0.05)
    assert in_order <= metrics["predict_time"]
    assert phases["detokenize"] < phases["engine"]


@pytest.mark.servers
def test_a_prediction_tells_nothing_of_it_unasked(cog: CogUnderTest) -> None:
    metrics = cog.predict(prompt=QUESTION, max_tokens=2)["metrics"]
    assert not [name for name in metrics if name.removesuffix("_time") in ("tokenize", *PHASES)]


@pytest.mark.servers
def test_one_that_is_stopped_by_its_text_tells_what_is_known(cog: CogUnderTest) -> None:
    prediction = cog.predict(prompt=QUESTION, stop_sequences="mach", log_performance_metrics=True)
    assert prediction["metrics"]["finish_reason"] == "stop"
    assert {"tokenize_time", "detokenize_time"} <= set(prediction["metrics"])


@pytest.mark.servers
def test_the_engine_servers_phases_are_histograms_on_tritons_metrics_port(cog: CogUnderTest) -> None:
    port = cog.counters._client.base_url
    before = histograms(httpx.get(f"{port}/metrics", timeout=DEADLINE_S).text)
    for _ in range(3):
        assert cog.predict(prompt=QUESTION, max_tokens=10)["status"] == "succeeded"

    def counted() -> bool:
        now = histograms(httpx.get(f"{port}/metrics", timeout=DEADLINE_S).text)
        return all(now[phase, "_count"] - before[phase, "_count"] >= 3 for phase in PHASES)

    wait_until(counted)
    now = histograms(httpx.get(f"{port}/metrics", timeout=DEADLINE_S).text)
    for phase in PHASES:
        buckets = [now[phase, str(bound)] for bound in BOUNDS_S] + [now[phase, "+Inf"]]
        assert buckets == sorted(buckets)
        assert buckets[-1] == now[phase, "_count"]
        assert now[phase, "_sum"] > 0
    engine_s = now["engine", "_sum"] - before["engine", "_sum"]
    assert engine_s >= 3 * 0.045


@pytest.mark.servers
def test_triton_tells_its_times_to_who_asks_as_nvidias_backend_does(triton: TritonUnderTest) -> None:
    body = {"input_ids": [10, 11], "request_output_len": 4, "streaming": True}
    *_, last = triton.stream(f"{SLOT}/generate_stream", body | {"return_perf_metrics": True})
    assert last["last_token_time_ns"] - last["arrival_time_ns"] >= 15e6
    assert "arrival_time_ns" not in triton.post(f"{SLOT}/generate_stream", body).text
    whole = triton.post(f"{SLOT}/generate", body | {"streaming": False, "return_perf_metrics": True})
    assert json.loads(whole.text)["last_token_time_ns"] > last["last_token_time_ns"]
