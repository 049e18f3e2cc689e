"""Statistics of models, made of Triton's metrics."""

import pytest

from errors.triton import TritonUnavailable
from errors.triton_front import UnknownTritonModel
from runner.triton_server.statistics import statistics_of

METRICS = """# TYPE nv_inference_request_success counter
nv_inference_request_success{model="b",version="1"} 3
nv_inference_request_success{model="a",version="1"} 0
nv_inference_request_success{model="b",version="2"} 7
nv_inference_request_failure{model="b",reason="CANCELED",version="1"} 2
nv_inference_request_failure{model="b",reason="OTHER",version="1"} 1
nv_inference_count{model="b",version="1"} 4
nv_inference_exec_count{model="b",version="1"} 3
nv_inference_request_duration_us{model="b",version="1"} 1.5e+06
nv_inference_queue_duration_us{model="b",version="1"} 12
nv_inference_pending_request_count{model="b",version="1"} 9
nv_cpu_utilization 0.5
cog_triton_slot_requests_total 4
"""


def test_counters_of_a_version_become_its_statistics() -> None:
    (found,) = statistics_of(METRICS, "b", "1")
    assert (found["name"], found["version"]) == ("b", "1")
    assert (found["inference_count"], found["execution_count"]) == (4, 3)
    stats = found["inference_stats"]
    assert stats["success"] == {"count": 3, "ns": 1_500_000_000}
    assert stats["queue"] == {"count": 3, "ns": 12_000}
    assert stats["fail"] == {"count": 3, "ns": 0}
    assert stats["compute_infer"] == {"count": 3, "ns": 0}


@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [("", "", ["a1", "b1", "b2"]), ("b", "", ["b1", "b2"]), ("a", "1", ["a1"])],
)
def test_models_are_found_by_name_and_version(model: str, version: str, expected: list[str]) -> None:
    assert [each["name"] + each["version"] for each in statistics_of(METRICS, model, version)] == expected


@pytest.mark.parametrize(("model", "version"), [("c", ""), ("a", "2")])
def test_an_unknown_model_is_refused_with_the_known_ones(model: str, version: str) -> None:
    with pytest.raises(UnknownTritonModel, match=r"E1108.*use one of: a, b"):
        statistics_of(METRICS, model, version)


def test_metrics_without_models_are_an_error() -> None:
    with pytest.raises(TritonUnavailable):
        statistics_of("nv_cpu_utilization 0.5\n")
