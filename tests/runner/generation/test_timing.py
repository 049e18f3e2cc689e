"""Where a request's time went: in its own metrics when asked."""

from __future__ import annotations

import json

import pytest

from runner.observability.metrics import ENGINE_PHASES as PHASES
from tests.runner.servers import SLOT, CogUnderTest, TritonUnderTest

QUESTION = "What is machine learning?"


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
    stopped = cog.predict(prompt=QUESTION, stop_sequences="mach", log_performance_metrics=True)["metrics"]
    assert stopped["finish_reason"] == "stop"
    assert {"tokenize_time", "detokenize_time"} <= set(stopped), "what is known"


@pytest.mark.servers
def test_triton_tells_its_times_to_who_asks_as_nvidias_backend_does(triton: TritonUnderTest) -> None:
    body = {"input_ids": [10, 11], "request_output_len": 4, "streaming": True}
    *_, last = triton.stream(f"{SLOT}/generate_stream", body | {"return_perf_metrics": True})
    assert last["last_token_time_ns"] - last["arrival_time_ns"] >= 15e6
    assert "arrival_time_ns" not in triton.post(f"{SLOT}/generate_stream", body).text
    whole = triton.post(f"{SLOT}/generate", body | {"streaming": False, "return_perf_metrics": True})
    assert json.loads(whole.text)["last_token_time_ns"] > last["last_token_time_ns"]
