"""What logs and traces are given of a request: plain values, so that they depend on nothing above them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GenerationSummary:
    """How one generation ended. Times are in seconds."""

    request_id: str
    trace_id: str
    finish_reason: str | None
    """None: it failed or was cancelled."""
    input_token_count: int
    output_token_count: int
    duration_s: float
    time_to_first_token_s: float | None
    detokenize_s: float
    phases: tuple[tuple[str, float, float], ...]
    """Name, start and end by ``time.perf_counter`` of the phases that are known."""
