"""The engine server's Prometheus metrics, as data, and the file by which other processes read them.

The engine server counts them (``runner.engines.server.metrics``), by series: ``name`` or
``name{label="value"}``, as in Prometheus's text format. ``exposition`` shows them at ``/metrics`` and
``runner.slot.metrics`` on Triton's metrics port. Needs nothing but the standard library: the engine
environment's Python imports it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.kinds import supports
from runner.observability.metrics import ENGINE_PHASES, PHASE_BOUNDS_S, PHASE_SECONDS, Metric

FILE_NAME = "engine"
"""In the metrics folder."""
_STALE_S = 10.0
"""The engine server writes once a second: after this time it does not run."""


def _counter(name: str, meaning: str) -> Metric:
    return Metric(name, "counter", meaning)


def _gauge(name: str, meaning: str) -> Metric:
    return Metric(name, "gauge", meaning)


END_REASONS = ("end", "stop", "length", "cancelled", "error")

SUBMITTED = _counter("cog_triton_slot_requests_total", "Requests submitted to the engine")
ENDED = Metric(
    "cog_triton_slot_ended_requests_total",
    "counter",
    "Requests whose end the engine confirmed, by reason",
    ("reason",),
    tuple((each,) for each in END_REASONS),
)
CANCELLED = _counter("cog_triton_slot_cancel_requests_total", "Cancellations sent to the engine")
TOKENS = _counter("cog_triton_slot_tokens_total", "Output tokens received from the engine")
RESTARTS = _counter("cog_triton_engine_restarts_total", "Restarts of the engine server after it died")
DROPPED_SPANS = _counter(
    "cog_triton_engine_dropped_spans_total", "Spans of the engine server that no collector accepted"
)
RUNNING = _gauge(
    "cog_triton_slot_running_requests", "Requests the engine holds, by the engine server's count"
)
ACTIVE = _gauge(
    "cog_triton_engine_active_requests", "Requests in the engine's batch, by the engine's own count"
)
QUEUED = _gauge("cog_triton_engine_queued_requests", "Requests waiting in the engine's queue")
CACHE_USED = _gauge("cog_triton_engine_cache_used_ratio", "Share of the engine's KV cache in use, 0..1")
PHASES = Metric(
    PHASE_SECONDS,
    "histogram",
    "Time of a request in one phase of its way, in seconds",
    ("phase",),
    tuple((each,) for each in ENGINE_PHASES),
    PHASE_BOUNDS_S,
)

_ITERATION = (
    (
        ("nv_trt_llm_request_metrics", "TRT LLM request metrics", "request_type"),
        {
            "num_active_requests": "active",
            "max_num_active_requests": "max",
            "num_scheduled_requests": "scheduled",
            "num_context_requests": "context",
            # NVIDIA's backend 0.16 has no such figure; its later versions call it "waiting".
            "num_queued_requests": "waiting",
        },
    ),
    (
        ("nv_trt_llm_runtime_memory_metrics", "TRT LLM runtime memory metrics", "memory_type"),
        {"cpu_mem_usage": "cpu", "gpu_mem_usage": "gpu", "pinned_mem_usage": "pinned"},
    ),
    (
        ("nv_trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics", "kv_cache_block_type"),
        {
            "max_num_blocks": "max",
            "free_num_blocks": "free",
            "used_num_blocks": "used",
            "tokens_per_block": "tokens_per",
        },
    ),
    (
        (
            "nv_trt_llm_inflight_batcher_metrics",
            "TRT LLM inflight_batcher-specific metrics",
            "inflight_batcher_specific_metric",
        ),
        {
            "num_ctx_tokens": "total_context_tokens",
            "num_gen_requests": "generation_requests",
            "micro_batch_id": "micro_batch_id",
            "num_paused_requests": "paused_requests",
        },
    ),
    (
        ("nv_trt_llm_general_metrics", "General TRT LLM metrics", "general_type"),
        {"iter": "iteration_counter"},
    ),
)
"""TensorRT-LLM's figures of an iteration as the metrics of NVIDIA's backend, which dashboards may expect:
family's name, meaning and label; TensorRT-LLM's name of the figure -> the label's value."""
MODEL_LABELS = {"model": "tensorrt_llm", "version": "1"}
"""NVIDIA's metrics of an iteration have these labels as well; their series among the counts do not."""

_ITERATION_FAMILIES = tuple(
    Metric(name, "gauge", meaning, (label,), tuple((each,) for each in figures.values()))
    for (name, meaning, label), figures in _ITERATION
)
FAMILIES = (
    *(SUBMITTED, ENDED, CANCELLED, TOKENS, RESTARTS, DROPPED_SPANS),
    *(RUNNING, ACTIVE, QUEUED, CACHE_USED),
    *_ITERATION_FAMILIES,
)
"""All but the histogram, whose family the runner shares (``metrics.PHASES``)."""


@dataclass(frozen=True)
class Series:
    """One number: ``name`` is its metric's, with the suffix of a histogram's part."""

    name: str
    labels: Mapping[str, str]
    is_counter: bool

    @property
    def key(self) -> str:
        """As in Prometheus's text format."""
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


def series_of(family: Metric) -> Iterator[Series]:
    """All of a family: a histogram's buckets, sum and count for each child."""
    for child in family.children:
        labels = dict(zip(family.labels, child, strict=True))
        if family.kind != "histogram":
            yield Series(family.name, labels, family.kind == "counter")
            continue
        for bound in (*map(str, family.bounds), "+Inf"):
            yield Series(f"{family.name}_bucket", {**labels, "le": bound}, is_counter=True)
        for suffix in ("_sum", "_count"):
            yield Series(family.name + suffix, labels, is_counter=True)


def families_of(engine_kind: str) -> tuple[Metric, ...]:
    """What an engine server of this kind counts, without the histogram."""
    if supports(engine_kind, "iteration_metrics"):
        return FAMILIES
    return FAMILIES[: -len(_ITERATION_FAMILIES)]


def model_labels_of(family: Metric, model: Mapping[str, str] = MODEL_LABELS) -> Mapping[str, str]:
    """Further labels of all series of the family."""
    return model if family in _ITERATION_FAMILIES else {}


ITERATION_SERIES = {
    figure: Series(name, {label: value}, is_counter=False).key
    for (name, _, label), figures in _ITERATION
    for figure, value in figures.items()
}
"""TensorRT-LLM's name of a figure -> its series."""


def write_counts(path: Path, counts: Mapping[str, float]) -> None:
    """Replace the file, so that a reader never sees a part of it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps([time.monotonic(), counts]))
    part.replace(path)


def read_counts(path: Path) -> dict[str, float]:
    """The counts of the engine server; empty if there was none.

    Gauges of an engine server that does not run are 0; its counters stay.
    """
    try:
        written_s, counts = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    is_running = time.monotonic() - written_s < _STALE_S
    return {key: value if is_running or key in _COUNTER_KEYS else 0.0 for key, value in counts.items()}


def counts_to_continue(path: Path) -> dict[str, float]:
    """Of the engine server before this one: its counters, which then never go down.

    What it had not confirmed has ended in an error.
    """
    counts = {key: value for key, value in read_counts(path).items() if key in _COUNTER_KEYS}
    counts.pop(RESTARTS.name, None)
    ended = {series.labels["reason"]: series.key for series in series_of(ENDED)}
    lost = counts.get(SUBMITTED.name, 0) - sum(counts.get(key, 0) for key in ended.values())
    return counts | {ended["error"]: counts.get(ended["error"], 0) + lost}


_COUNTER_KEYS = {
    series.key for family in (*FAMILIES, PHASES) for series in series_of(family) if series.is_counter
}
