"""The runner's own Prometheus metrics, as data. The table in docs/observability.md is generated from it.

``meter`` counts them, ``exposition`` writes them. The engine server's are in ``engine_metrics``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

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
    """One family. ``children`` are all values of ``labels``; ``bounds`` are the buckets of a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    children: tuple[tuple[str, ...], ...] = ((),)
    bounds: tuple[float, ...] = ()

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
PHASES = Metric(
    PHASE_SECONDS,
    "histogram",
    "Time of a request in a phase; the runner measures tokenize and detokenize, the engine server the others",
    ("phase",),
    (("tokenize",), ("detokenize",)),
    PHASE_BOUNDS_S,
)
INPUT_TOKENS = Metric("cog_triton_input_tokens_total", "counter", "Input tokens")
OUTPUT_TOKENS = Metric(
    "cog_triton_output_tokens_total",
    "counter",
    "Output tokens received, also those after a stop sequence",
)
TRITON_RESTARTS = Metric("cog_triton_triton_restarts_total", "counter", "Restarts of Triton after it ended")

METRICS = (
    *(REQUESTS, ACTIVE, QUEUE, TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, DURATION, PHASES),
    *(INPUT_TOKENS, OUTPUT_TOKENS, TRITON_RESTARTS),
)
"""In the order of their numbers in a process's file."""


def _places() -> dict[tuple[str, tuple[str, ...]], int]:
    children = [(metric, child) for metric in METRICS for child in metric.children]
    starts = accumulate((metric.num_cells for metric, _ in children), initial=0)
    return {(metric.name, child): start for (metric, child), start in zip(children, starts, strict=False)}


PLACES = _places()
"""(name, label values) -> index of its first number in a process's file."""
NUM_CELLS = sum(metric.num_cells * len(metric.children) for metric in METRICS)
