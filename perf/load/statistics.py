"""Figures from records: distributions, exact concurrency, goodput. Pure functions."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from errors.requests import InvalidInput
from perf.load.record import Record


@dataclass(frozen=True)
class Distribution:
    """Figures of at least one value. Percentiles are interpolated; ``std`` is the population's."""

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Return the figures of the values that are not None; None where there is none."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    mean = statistics.fmean(ordered)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered))
    # It takes two values at least.
    cuts = statistics.quantiles(ordered * (1 + (len(ordered) == 1)), n=100, method="inclusive")
    p50, p90, p95, p99 = (cuts[percent - 1] for percent in (50, 90, 95, 99))
    return Distribution(len(ordered), mean, std, ordered[0], p50, p90, p95, p99, ordered[-1])


@dataclass(frozen=True)
class Concurrency:
    """Requests in flight, weighted by the time each number of them lasted: exact, not sampled."""

    mode: int
    mean: float
    median: float
    max: int
    min: int


def concurrency_steps(records: Iterable[Record]) -> list[tuple[float, int]]:
    """Return (seconds, requests in flight from then on), from 0 to the last answer."""
    changes: defaultdict[float, int] = defaultdict(int)
    for record in records:
        changes[record.sent_s] += 1
        changes[record.ended_s] -= 1
    steps = [(0.0, 0)]
    for at_s in sorted(changes):
        steps.append((at_s, steps[-1][1] + changes[at_s]))
    return steps


def concurrency(records: Iterable[Record]) -> Concurrency:
    """Count between the first request and the last answer; without records all is 0."""
    lasted_s: defaultdict[int, float] = defaultdict(float)
    for (start_s, level), (end_s, _) in pairwise(concurrency_steps(records)[1:]):
        lasted_s[level] += end_s - start_s
    total_s = math.fsum(lasted_s.values())
    if not total_s:
        return Concurrency(0, 0.0, 0.0, 0, 0)
    mean = math.fsum(level * seconds for level, seconds in lasted_s.items()) / total_s
    mode = max(lasted_s, key=lambda level: (lasted_s[level], level))
    levels = sorted(lasted_s)
    passed_s = accumulate(lasted_s[level] for level in levels)
    median = next((level for level, at_s in zip(levels, passed_s, strict=True) if at_s >= total_s / 2), 0)
    return Concurrency(mode, mean, float(median), levels[-1], levels[0])


SLO_NAMES = {"ttft_ms": "first_token_s", "itl_ms": "inter_token_s", "total_ms": "latency_s"}
"""The value of a record that each limit is for."""


def parse_slo(terms: Sequence[str]) -> dict[str, float]:
    """Return limits in seconds by the record's value, of ``ttft_ms=300`` and the like. Raises E1005."""
    limits_s = {}
    for term in terms:
        name, _, value = term.partition("=")
        try:
            limit_s = float(value) / 1000
        except ValueError:
            limit_s = math.nan
        if name not in SLO_NAMES or not 0 < limit_s < math.inf:
            raise InvalidInput(
                name="slo", expected=f"NAME=MILLISECONDS with {', '.join(SLO_NAMES)}", value=term
            )
        limits_s[SLO_NAMES[name]] = limit_s
    return limits_s


def is_good(record: Record, slo: Mapping[str, float]) -> bool:
    """Return True if it completed within all limits. A limit of a value that it lacks is missed."""
    if record.answer.output_tokens < 2:  # No time between tokens.
        slo = {name: limit_s for name, limit_s in slo.items() if name != "inter_token_s"}
    values = ((getattr(record, name), limit_s) for name, limit_s in slo.items())
    return record.is_completed and all(value is not None and value <= limit for value, limit in values)
