"""All Prometheus metrics, as data. The table in docs/observability.md is generated from it.

Each process counts in numbers of its own (``meter``), which ``samples`` reads; ``exposition`` shows them at
``/metrics``, and ``runner.slot.triton_metrics`` the engine server's on Triton's metrics port. The module
needs only the standard library, because the engine environment's Python imports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from engine.kinds import KINDS, supports
from errors import BY_CODE

PHASE_SECONDS = "cog_triton_request_phase_seconds"
PHASE_BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ENGINE_PHASES = ("queue", "engine", "relay")
"""The phases of a request that the engine server measures; the runner measures the others."""

UNEXPECTED = "unexpected"
"""The label ``code`` of an error without a code."""

_OTHER_CODES = ("E12", "E13", "E14", "E15", "E2111", "E23", "E25")
"""Prefixes of codes that no request fails with: of builds, engine.tars, images, load tests and commands."""

_TTFT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class Metric:
    """A family. ``children`` are all values of ``labels``; ``bounds`` are the buckets of a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    children: tuple[tuple[str, ...], ...] = ((),)
    bounds: tuple[float, ...] = ()

    @cached_property
    def start(self) -> int:
        """Index of its first number among those of a process, without labels."""
        return PLACES[self.name, ()]

    @property
    def num_cells(self) -> int:
        """Numbers of a child: the value, or a histogram's buckets (not cumulative) with +Inf, and the sum."""
        return len(self.bounds) + 2 if self.bounds else 1


REQUESTS = Metric(
    "cog_triton_requests_total",
    "counter",
    "Completed requests, by outcome (succeeded, failed, cancelled) and error code of failed ones",
    ("outcome", "code"),
    (
        *(("succeeded", ""), ("cancelled", ""), ("failed", UNEXPECTED)),
        *(("failed", code) for code in sorted(BY_CODE) if not code.startswith(_OTHER_CODES)),
    ),
)
ACTIVE = Metric("cog_triton_active_requests", "gauge", "Requests in progress, from prompt to last token")
QUEUE = Metric(
    "cog_triton_queue_seconds",
    "histogram",
    "Time from the arrival of a request until it is sent to the engine server, without tokenizing",
    bounds=_TTFT_BOUNDS_S,
)
TIME_TO_FIRST_TOKEN = Metric(
    "cog_triton_time_to_first_token_seconds",
    "histogram",
    "Time from the arrival of a request to its first token",
    bounds=_TTFT_BOUNDS_S,
)
INTER_TOKEN_LATENCY = Metric(
    "cog_triton_inter_token_latency_seconds",
    "histogram",
    "Inter-token latency; tokens that arrive together share the time since the last arrival equally",
    bounds=(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0),
)
DURATION = Metric(
    "cog_triton_request_duration_seconds",
    "histogram",
    "Time from the arrival of a request to its end, with any outcome",
    bounds=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
PHASES, ENGINE_PHASE_TIMES = (
    Metric(
        PHASE_SECONDS,
        "histogram",
        "Time of a request in a phase; the runner measures tokenize and detokenize, "
        "the engine server the others",
        ("phase",),
        tuple((phase,) for phase in phases),
        PHASE_BOUNDS_S,
    )
    for phases in (("tokenize", "detokenize"), ENGINE_PHASES)
)
INPUT_TOKENS = Metric("cog_triton_input_tokens_total", "counter", "Input tokens")
CACHED_TOKENS = Metric(
    "cog_triton_cached_input_tokens_total",
    "counter",
    "Input tokens that the engine did not compute, because it kept them of earlier requests",
)
OUTPUT_TOKENS = Metric(
    "cog_triton_output_tokens_total", "counter", "Output tokens, without those after a stop sequence"
)
TRITON_RESTARTS = Metric("cog_triton_triton_restarts_total", "counter", "Restarts of Triton after it ended")

METRICS = (
    *(REQUESTS, ACTIVE, QUEUE, TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, DURATION, PHASES),
    *(INPUT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, TRITON_RESTARTS),
)
"""Metrics that processes of both APIs count, with the further label ``api``."""

SUBMITTED = Metric("cog_triton_slot_requests_total", "counter", "Requests submitted to the engine")
ENDED = Metric(
    "cog_triton_slot_ended_requests_total",
    "counter",
    "Requests whose end the engine confirmed, by reason",
    ("reason",),
    (("end",), ("stop",), ("length",), ("cancelled",), ("error",)),
)
CANCELLED = Metric("cog_triton_slot_cancel_requests_total", "counter", "Cancellations sent to the engine")
TOKENS = Metric("cog_triton_slot_tokens_total", "counter", "Output tokens received from the engine")
DRAFT_TOKENS = Metric(
    "cog_triton_slot_draft_tokens_total",
    "counter",
    "Draft tokens of speculative decoding, by outcome, of requests that the engine itself ended",
    ("outcome",),
    (("accepted",), ("rejected",)),
)
RESTARTS = Metric(
    "cog_triton_engine_restarts_total", "counter", "Restarts of the engine server after it died"
)
RUNNING = Metric(
    "cog_triton_slot_running_requests", "gauge", "Requests the engine holds, by the engine server's count"
)
ENGINE_ACTIVE = Metric(
    "cog_triton_engine_active_requests", "gauge", "Requests in the engine's batch, by the engine's own count"
)
QUEUED = Metric("cog_triton_engine_queued_requests", "gauge", "Requests waiting in the engine's queue")
CACHE_USED = Metric(
    "cog_triton_engine_cache_used_ratio", "gauge", "Share of the engine's KV cache in use, 0..1"
)

_ITERATION = {
    ("nv_trt_llm_request_metrics", "TRT LLM request metrics", "request_type"): {
        "num_active_requests": "active",
        "max_num_active_requests": "max",
        "num_scheduled_requests": "scheduled",
        "num_context_requests": "context",
        # NVIDIA's backend 0.16 has no such figure; its later versions call it "waiting".
        "num_queued_requests": "waiting",
    },
    ("nv_trt_llm_runtime_memory_metrics", "TRT LLM runtime memory metrics", "memory_type"): {
        "cpu_mem_usage": "cpu",
        "gpu_mem_usage": "gpu",
        "pinned_mem_usage": "pinned",
    },
    ("nv_trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics", "kv_cache_block_type"): {
        "max_num_blocks": "max",
        "free_num_blocks": "free",
        "used_num_blocks": "used",
        "tokens_per_block": "tokens_per",
    },
    (
        "nv_trt_llm_inflight_batcher_metrics",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
    ): {
        "num_ctx_tokens": "total_context_tokens",
        "num_gen_requests": "generation_requests",
        "micro_batch_id": "micro_batch_id",
        "num_paused_requests": "paused_requests",
    },
    ("nv_trt_llm_general_metrics", "General TRT LLM metrics", "general_type"): {"iter": "iteration_counter"},
}
"""TensorRT-LLM's figures of an iteration as the metrics of NVIDIA's backend, which dashboards may expect:
family's name, meaning and label; TensorRT-LLM's name of the figure -> the label's value."""
_MODEL_LABELS, _MODEL = ("model", "version"), ("tensorrt_llm", "1")
_ITERATION_METRICS = tuple(
    Metric(
        name, "gauge", meaning, (label, *_MODEL_LABELS), tuple((each, *_MODEL) for each in figures.values())
    )
    for (name, meaning, label), figures in _ITERATION.items()
)
ENGINE_METRICS = (
    *(SUBMITTED, ENDED, CANCELLED, TOKENS, DRAFT_TOKENS, RESTARTS),
    *(RUNNING, ENGINE_ACTIVE, QUEUED, CACHE_USED, ENGINE_PHASE_TIMES, *_ITERATION_METRICS),
)
"""Metrics that the engine server counts."""


def metrics_of(source: str) -> tuple[Metric, ...]:
    """Return the metrics of a process: of an API, or the engine server by the engine's kind."""
    if source not in KINDS:
        return METRICS
    has_iterations = supports(source, "iteration_metrics")
    return tuple(each for each in ENGINE_METRICS if has_iterations or each not in _ITERATION_METRICS)


_CHILDREN = [(metric, child) for metric in (*METRICS, *ENGINE_METRICS) for child in metric.children]
*_STARTS, NUM_CELLS = accumulate((metric.num_cells for metric, _ in _CHILDREN), initial=0)
PLACES = {(metric.name, child): start for (metric, child), start in zip(_CHILDREN, _STARTS, strict=True)}
"""Index of a child's first number among those of a process, by name and label values."""
ITERATION_PLACES = {
    figure: PLACES[name, (value, *_MODEL)]
    for (name, _, _), figures in _ITERATION.items()
    for figure, value in figures.items()
}
"""Places by TensorRT-LLM's name of a figure."""


class Sample(NamedTuple):
    """One number as Prometheus has it; a histogram consists of several."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(metric: Metric, cells: Sequence[float]) -> Iterator[Sample]:
    """Yield all samples of a metric, from the numbers of a process."""
    for child in metric.children:
        labels = dict(zip(metric.labels, child, strict=True))
        start = PLACES[metric.name, child]
        if metric.kind != "histogram":
            yield Sample(metric.name, labels, cells[start])
            continue
        end = start + len(metric.bounds) + 1
        counts = list(accumulate(cells[start:end]))
        for bound, count in zip([*map(str, metric.bounds), "+Inf"], counts, strict=True):
            yield Sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
        yield Sample(f"{metric.name}_sum", labels, cells[end])
        yield Sample(f"{metric.name}_count", labels, counts[-1])
