"""The slot's own Prometheus metrics, on Triton's metrics port.

Each update of a Triton metric is a message to another process. So the slot counts in plain attributes, and
``publish`` sends what has changed.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from runner.engines.protocol.messages import Statistics
from runner.observability.metrics import PHASE_BOUNDS_S, PHASE_SECONDS, SLOT_PHASES, Metric
from runner.slot.relay import End


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "counter", meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "gauge", meaning, labels)


_SUBMITTED = _counter("cog_triton_slot_requests_total", "Requests submitted to the engine")
_ENDED = _counter(
    "cog_triton_slot_ended_requests_total", "Requests whose end the engine confirmed, by reason", "reason"
)
_CANCEL_REQUESTS = _counter("cog_triton_slot_cancel_requests_total", "Cancellations sent to the engine")
_TOKENS = _counter("cog_triton_slot_tokens_total", "Output tokens received from the engine")
_RESTARTS = _counter("cog_triton_engine_restarts_total", "Restarts of the engine worker after it died")
_RUNNING = _gauge("cog_triton_slot_running_requests", "Requests the engine holds, by the slot's own count")
_ACTIVE = _gauge(
    "cog_triton_engine_active_requests", "Requests in the engine's batch, by the engine's own count"
)
_QUEUED = _gauge("cog_triton_engine_queued_requests", "Requests waiting in the engine's queue")
_CACHE_USED = _gauge("cog_triton_engine_cache_used_ratio", "Share of the engine's KV cache in use, 0..1")
_END_REASONS = ("end", "stop", "length", "cancelled", "error")

_ITERATION_FIGURES = {
    _gauge("nv_trt_llm_request_metrics", "TRT LLM request metrics", "request_type"): {
        "num_active_requests": "active",
        "max_num_active_requests": "max",
        "num_scheduled_requests": "scheduled",
        "num_context_requests": "context",
        # NVIDIA's backend 0.16 has no such figure; its later versions call it "waiting".
        "num_queued_requests": "waiting",
    },
    _gauge("nv_trt_llm_runtime_memory_metrics", "TRT LLM runtime memory metrics", "memory_type"): {
        "cpu_mem_usage": "cpu",
        "gpu_mem_usage": "gpu",
        "pinned_mem_usage": "pinned",
    },
    _gauge("nv_trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics", "kv_cache_block_type"): {
        "max_num_blocks": "max",
        "free_num_blocks": "free",
        "used_num_blocks": "used",
        "tokens_per_block": "tokens_per",
    },
    _gauge(
        "nv_trt_llm_inflight_batcher_metrics",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
    ): {
        "num_ctx_tokens": "total_context_tokens",
        "num_gen_requests": "generation_requests",
        "micro_batch_id": "micro_batch_id",
        "num_paused_requests": "paused_requests",
    },
    _gauge("nv_trt_llm_general_metrics", "General TRT LLM metrics", "general_type"): {
        "iter": "iteration_counter",
    },
}
"""TensorRT-LLM's figures of an iteration as the metrics of NVIDIA's backend, which dashboards may expect:
family -> TensorRT-LLM's name of the figure -> the label's value."""
FAMILIES = (
    *(_SUBMITTED, _ENDED, _CANCEL_REQUESTS, _TOKENS, _RESTARTS),
    *(_RUNNING, _ACTIVE, _QUEUED, _CACHE_USED),
    *_ITERATION_FIGURES,
)

_PHASES_MEANING = "Time of a request in one phase of its way, in seconds"
_PHASES_INTERVAL_S = 1.0
_BOUNDS = (*map(str, PHASE_BOUNDS_S), "+Inf")


class _Series:
    """Triton's metrics of one family, by any key."""

    def __init__(self, pb_utils: Any, family: Metric, labels: Mapping[Any, Mapping[str, str]]) -> None:
        kinds = pb_utils.MetricFamily
        self._is_counter = family.kind == "counter"
        kind = kinds.COUNTER if self._is_counter else kinds.GAUGE
        self._family = kinds(name=family.name, description=family.meaning, kind=kind)
        self._metrics = {key: self._family.Metric(labels=each) for key, each in labels.items()}
        self._sent = dict.fromkeys(labels, 0.0)

    def publish(self, values: Mapping[Any, float]) -> None:
        """Send what has changed. Values of unknown keys are left out."""
        for key, value in values.items():
            if value == self._sent.get(key, value):
                continue
            if self._is_counter:
                self._metrics[key].increment(value - self._sent[key])
            else:
                self._metrics[key].set(value)
            self._sent[key] = value


class SlotMetrics:
    def __init__(self, pb_utils: Any) -> None:
        self.submitted = 0
        self.cancel_requests = 0
        self.tokens = 0
        self.statistics = Statistics(active=0, queued=0)
        self._pb_utils = pb_utils
        self._iteration: list[_Series] = []
        self.phases = PhaseTimes(pb_utils)
        self._ended = dict.fromkeys(_END_REASONS, 0)
        self._ended_series = _Series(pb_utils, _ENDED, {each: {"reason": each} for each in _END_REASONS})
        self._series = {
            family: _Series(pb_utils, family, {None: {}}) for family in FAMILIES if not family.labels
        }

    def add_iteration(self, model: Mapping[str, str]) -> None:
        """Publish the engine's own figures too; ``model`` are labels that all have."""
        for family, values in _ITERATION_FIGURES.items():
            labels = {figure: {family.labels[0]: value, **model} for figure, value in values.items()}
            self._iteration.append(_Series(self._pb_utils, family, labels))

    def ended(self, end: End) -> None:
        self._ended[end if isinstance(end, str) else "error"] += 1

    def publish(self, restarts: int, running: int = 0) -> None:
        for family, value in (
            (_SUBMITTED, self.submitted),
            (_CANCEL_REQUESTS, self.cancel_requests),
            (_TOKENS, self.tokens),
            (_RESTARTS, restarts),
            (_RUNNING, running),
            (_ACTIVE, self.statistics.active),
            (_QUEUED, self.statistics.queued),
            (_CACHE_USED, self.statistics.cache_used or 0.0),
        ):
            self._series[family].publish({None: value})
        self._ended_series.publish(self._ended)
        for series in self._iteration:
            series.publish(self.statistics.gauges)
        self.phases.publish()


class PhaseTimes:
    """Histograms of the phases that the slot knows. ``observe`` one phase from one thread only.

    Triton's own histograms take one message for each observation. These are published once a second, as the
    counters that a histogram consists of; ``histogram_quantile`` reads them like any other.
    """

    def __init__(self, pb_utils: Any) -> None:
        self._counts = {phase: [0] * len(_BOUNDS) for phase in SLOT_PHASES}
        self._sums_s = dict.fromkeys(SLOT_PHASES, 0.0)
        self._next_s = 0.0
        by_phase = {phase: {"phase": phase} for phase in SLOT_PHASES}
        by_bucket = {(each, le): {"phase": each, "le": le} for each in SLOT_PHASES for le in _BOUNDS}
        self._buckets, self._sum_series, self._count_series = (
            _Series(pb_utils, _counter(PHASE_SECONDS + suffix, _PHASES_MEANING), labels)
            for suffix, labels in (("_bucket", by_bucket), ("_sum", by_phase), ("_count", by_phase))
        )

    def observe(self, phase: str, seconds: float) -> None:
        self._counts[phase][bisect.bisect_left(PHASE_BOUNDS_S, seconds)] += 1
        self._sums_s[phase] += seconds

    def publish(self) -> None:
        """Send what has changed to Triton, once a second at most."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + _PHASES_INTERVAL_S
        for phase in SLOT_PHASES:
            totals = dict(zip(_BOUNDS, accumulate(self._counts[phase]), strict=True))
            self._buckets.publish({(phase, bound): total for bound, total in totals.items()})
            self._count_series.publish({phase: totals["+Inf"]})
        self._sum_series.publish(self._sums_s)
