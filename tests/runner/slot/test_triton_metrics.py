"""What the slot publishes on Triton's metrics port; a stand-in for Triton's metrics records it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from runner.engines.protocol.messages import Statistics
from runner.engines.server.metrics import EngineMetrics
from runner.observability.metrics import NUM_CELLS, PLACES, RESTARTS, RUNNING, SUBMITTED, TOKENS, Metric
from runner.slot.triton_metrics import TritonMetrics


class StandInTriton:
    """``pb_utils.MetricFamily``: values by name and labels, and the number of messages."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.kinds: dict[str, str] = {}
        self.num_messages = 0
        self.pb_utils = SimpleNamespace(MetricFamily=self)

    def __call__(self, *, name: str, description: str, kind: str) -> Any:
        assert description
        assert name not in self.kinds, "Triton refuses a second family of a name"
        self.kinds[name] = kind

        def make(labels: dict[str, str]) -> Any:
            key = name, frozenset(labels.items())
            self.values[key] = 0.0

            def add(value: float) -> None:
                assert kind == self.COUNTER
                assert value > 0, "Triton refuses to decrement a counter"
                self.values[key] += value
                self.num_messages += 1

            def put(value: float) -> None:
                assert kind == self.GAUGE
                self.values[key] = value
                self.num_messages += 1

            return SimpleNamespace(increment=add, set=put)

        return SimpleNamespace(Metric=make)

    def __getitem__(self, name: str) -> float:
        (value,) = (value for (each, _), value in self.values.items() if each == name)
        return value


def counts_of(metrics: EngineMetrics, running: int = 0, **gauges: float) -> list[float]:
    return metrics.counts(running=running, statistics=Statistics(active=0, queued=0, gauges=gauges))


def counts(values: Mapping[Metric, float]) -> list[float]:
    """All 0 but these."""
    cells = [0.0] * NUM_CELLS
    for metric, value in values.items():
        cells[PLACES[metric.name, ()]] = value
    return cells


def test_only_what_has_changed_is_published() -> None:
    triton = StandInTriton()
    slot = TritonMetrics(triton.pb_utils, "paced")
    engine = EngineMetrics("paced", restarts=1)
    slot.publish(counts_of(engine))
    assert (triton[RESTARTS.name], triton.num_messages) == (1, 1)
    engine.submitted(None, 0.0)
    engine.received(9)
    slot.publish(counts_of(engine, running=1))
    assert (triton[SUBMITTED.name], triton[TOKENS.name], triton[RUNNING.name]) == (1, 9, 1)
    assert triton.num_messages == 4
    slot.publish(counts_of(engine, running=1))
    assert triton.num_messages == 4
    engine.received(1)
    slot.publish(counts_of(engine))
    assert (triton[TOKENS.name], triton[RUNNING.name], triton.num_messages) == (10, 0, 6)


def test_a_histogram_is_published_as_its_counters() -> None:
    triton = StandInTriton()
    slot = TritonMetrics(triton.pb_utils, "paced")
    engine = EngineMetrics("paced")
    engine.completed(10.0, 10.05)
    slot.publish(counts_of(engine))
    name = "cog_triton_request_phase_seconds"
    buckets = {
        dict(labels)["le"]: value
        for (each, labels), value in triton.values.items()
        if each == f"{name}_bucket" and ("phase", "engine") in labels
    }
    assert [bound for bound, value in buckets.items() if not value][-1] == "0.03"
    assert buckets["0.1"] == buckets["+Inf"] == 1
    assert triton.kinds[f"{name}_sum"] == triton.kinds[f"{name}_count"] == "counter"


def test_nvidias_metrics_have_the_models_labels_and_only_their_kind_has_them() -> None:
    triton = StandInTriton()
    slot = TritonMetrics(triton.pb_utils, "tensorrt_llm")
    figures = counts_of(EngineMetrics("tensorrt_llm"), used_num_blocks=5.0)
    slot.publish(figures)
    labels = frozenset({("kv_cache_block_type", "used"), ("model", "tensorrt_llm"), ("version", "1")})
    assert triton.values["nv_trt_llm_kv_cache_block_metrics", labels] == 5
    others = StandInTriton()
    TritonMetrics(others.pb_utils, "vllm").publish(figures)
    assert others.num_messages == 0


@pytest.mark.parametrize("last", [2, 5])
def test_a_counter_that_went_down_counts_from_zero(last: int) -> None:
    triton = StandInTriton()
    slot = TritonMetrics(triton.pb_utils, "paced")
    slot.publish(counts({TOKENS: 8.0}))
    slot.publish(counts({TOKENS: float(last)}))
    assert triton[TOKENS.name] == 8 + last
    slot.publish(counts({TOKENS: last + 1.0}))
    assert triton[TOKENS.name] == 9 + last


def test_without_an_engine_server_the_gauges_are_zero_and_the_counters_stay() -> None:
    triton = StandInTriton()
    slot = TritonMetrics(triton.pb_utils, "paced")
    slot.publish(counts({TOKENS: 8.0, RUNNING: 3.0}))
    slot.engine_lost()
    assert (triton[TOKENS.name], triton[RUNNING.name]) == (8, 0)
    slot.publish(counts({TOKENS: 9.0, RUNNING: 1.0}))
    assert (triton[TOKENS.name], triton[RUNNING.name]) == (9, 1)
