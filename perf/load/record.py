"""Facts of one request of a load test. Times are seconds since the test began, on one clock."""

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Outcome = Literal["completed", "failed", "busy"]
"""Outcome. ``busy``: the server had no room (HTTP 409 or 429, Cog's "Already running a prediction")."""


@dataclass
class Answer:
    """Contents of a target's answer. ``server`` holds what the server itself measured, by log line."""

    outcome: Outcome = "completed"
    error: str = ""
    input_tokens: int | None = None
    output_tokens: int = 0
    output_s: "array[float]" = field(default_factory=lambda: array("d"))
    """Times when pieces of output arrived; empty where it came as one document."""
    server: dict[str, float] = field(default_factory=dict)


@dataclass
class Record:
    """``scheduled_s`` is when it should have been sent; latencies count from there, so waiting can't hide."""

    scheduled_s: float
    sent_s: float
    ended_s: float
    answer: Answer

    @property
    def is_completed(self) -> bool:
        return self.answer.outcome == "completed"

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.scheduled_s

    @property
    def first_token_s(self) -> float | None:
        """Time to first token; None where the answer was no stream."""
        return self.answer.output_s[0] - self.scheduled_s if self.answer.output_s else None

    @property
    def inter_token_s(self) -> float | None:
        """Mean time between tokens: (last - first) / (tokens - 1), however they were bundled."""
        times, tokens = self.answer.output_s, self.answer.output_tokens
        return (times[-1] - times[0]) / (tokens - 1) if len(times) > 1 and tokens > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        times = self.answer.output_s
        return [after - before for before, after in pairwise(times)]

    @property
    def tokens_per_second(self) -> float:
        """SSTPS: output tokens / (last byte - request sent)."""
        return self.answer.output_tokens / (self.ended_s - self.sent_s)
