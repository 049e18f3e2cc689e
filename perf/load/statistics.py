"""From records to figures: distributions, exact concurrency, throughput, goodput. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from errors.requests import InvalidInput
from perf.load.record import Record


@dataclass(frozen=True)
class Distribution:
    """Of at least one value. Percentiles are interpolated between neighbours; ``std`` is the population's."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Distribution(len(ordered), mean, math.sqrt(variance), ordered[0], p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the ordered values lie, by linear interpolation."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True)
class Concurrency:
    """Requests in flight, weighted by the time each number of them lasted: exact, not sampled."""

    mode: int
    mean: float
    median: float
    max: int
    min: int


def concurrency_steps(records: Iterable[Record]) -> list[tuple[float, int]]:
    """(seconds, requests in flight from then on), from 0 to the last answer."""
    changes: Counter[float] = Counter()
    for record in records:
        changes[record.sent_s] += 1
        changes[record.ended_s] -= 1
    steps = [(0.0, 0)]
    for at_s in sorted(changes):
        steps.append((at_s, steps[-1][1] + changes[at_s]))
    return steps


def concurrency(records: Iterable[Record]) -> Concurrency:
    """Between the first request and the last answer. Of no records all is 0."""
    lasted_s: Counter[int] = Counter()
    steps = concurrency_steps(records)[1:]
    for (start_s, level), (end_s, _) in pairwise(steps):
        lasted_s[level] += end_s - start_s  # type: ignore[assignment]  # Counter's values may be floats
    total_s = math.fsum(lasted_s.values())
    if not total_s:
        return Concurrency(0, 0.0, 0.0, 0, 0)
    mean = math.fsum(level * seconds for level, seconds in lasted_s.items()) / total_s
    mode = max(lasted_s, key=lambda level: (lasted_s[level], level))
    return Concurrency(mode, mean, _weighted_median(lasted_s, total_s), max(lasted_s), min(lasted_s))


def _weighted_median(lasted_s: Counter[int], total_s: float) -> float:
    passed_s = 0.0
    for level in sorted(lasted_s):
        passed_s += lasted_s[level]
        if passed_s >= total_s / 2:
            return float(level)
    return float(max(lasted_s))


SLO_NAMES = ("ttft_ms", "itl_ms", "total_ms")


@dataclass(frozen=True)
class Slo:
    """What a request must keep to be good. Seconds; None where it does not matter."""

    first_token_s: float | None = None
    inter_token_s: float | None = None
    total_s: float | None = None

    @staticmethod
    def parse(terms: Sequence[str]) -> Slo:
        """Of ``ttft_ms=300``, ``itl_ms=50``, ``total_ms=5000``. Raises E1005."""
        limits: dict[str, float] = {}
        for term in terms:
            name, _, value = term.partition("=")
            try:
                limits[name] = float(value) / 1000
            except ValueError:
                limits[name] = -1.0
            if name not in SLO_NAMES or not 0 < limits[name] < float("inf"):
                raise InvalidInput(
                    name="slo", expected=f"NAME=MILLISECONDS with {', '.join(SLO_NAMES)}", value=term
                )
        return Slo(*(limits.get(name) for name in SLO_NAMES))

    @property
    def is_set(self) -> bool:
        return self != Slo()

    def is_kept(self, record: Record) -> bool:
        """Whether it completed within all limits. What an answer without a stream can't show, is not kept."""
        pairs = (
            (self.first_token_s, record.first_token_s),
            (self.inter_token_s, record.inter_token_s if record.answer.output_tokens > 1 else 0.0),
            (self.total_s, record.latency_s),
        )
        return record.is_completed and all(
            limit is None or (value is not None and value <= limit) for limit, value in pairs
        )
