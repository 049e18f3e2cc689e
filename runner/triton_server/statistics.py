"""Triton's statistics of its models, as its HTTP API writes them, made of its metrics.

NOTE: Triton's own statistics are not read: Triton 2.51 corrupts its memory if they are read while a stream is
longer than all before it.
"""

import re
from collections import defaultdict
from typing import Any

from errors.triton import TritonUnavailable
from errors.triton_front import UnknownTritonModel

_COUNTER = re.compile(
    r'^nv_inference_(\w+)\{model="([^"]*)",(?:reason="\w*",)?version="([^"]*)"\} ([0-9.e+]+)$', re.MULTILINE
)
_DURATIONS = {
    "success": "request",
    "queue": "queue",
    "compute_input": "compute_input",
    "compute_infer": "compute_infer",
    "compute_output": "compute_output",
}
"""Triton's statistics, and the metric that has the sum of each."""


def statistics_of(metrics: str, model: str = "", version: str = "") -> list[dict[str, Any]]:
    """Return the statistics of one model or version, or of all, by name. Raises TritonUnavailable, E1108.

    Metrics have no times of failures, no statistics by batch or by response, and not when a model last ran.
    """
    models: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for counter, name, number, value in _COUNTER.findall(metrics):
        models[name, number][counter] += float(value)
    if not models:
        raise TritonUnavailable(reason="its metrics name no model")
    found = [each for each in sorted(models) if model in ("", each[0]) and version in ("", each[1])]
    if not found:
        names = ", ".join(sorted({name for name, _ in models}))
        called = f"{model}/versions/{version}" if version else model
        raise UnknownTritonModel(model=called, remedy=f"use one of: {names}")
    return [_statistics(*each, models[each]) for each in found]


def _statistics(name: str, version: str, counters: defaultdict[str, float]) -> dict[str, Any]:
    num_successes = int(counters["request_success"])
    inference_stats = {
        each: {"count": num_successes, "ns": int(counters[f"{metric}_duration_us"] * 1000)}
        for each, metric in _DURATIONS.items()
    }
    inference_stats["fail"] = {"count": int(counters["request_failure"]), "ns": 0}
    return {
        "name": name,
        "version": version,
        "last_inference": 0,
        "inference_count": int(counters["count"]),
        "execution_count": int(counters["exec_count"]),
        "inference_stats": {
            **inference_stats,
            **{each: {"count": 0, "ns": 0} for each in ("cache_hit", "cache_miss")},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
