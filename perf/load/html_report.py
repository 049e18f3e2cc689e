"""A load test on one page: what the terminal shows, and charts over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from perf.load.chart import Chart, Point, page
from perf.load.record import Record
from perf.load.statistics import concurrency_steps
from perf.load.summary import Summary
from perf.load.text_report import text_report

_BINS = 60


def html_report(configuration: Mapping[str, str], summary: Summary, records: Sequence[Record]) -> str:
    done = [record for record in records if record.is_completed]
    waits = {
        "time to first token": _shares(each.first_token_s for each in done),
        "longest gap in a stream": _shares(max(each.gaps_s, default=None) for each in done),
        "total latency": _shares(each.latency_s for each in done),
    }
    charts = [
        Chart("Requests in flight", "seconds", "requests", {"": _steps(concurrency_steps(records))}),
        Chart("Output of all streams", "seconds", "tokens/s", {"": _steps(token_rate(done))}),
        Chart("How many waited at most how long", "ms", "% of requests", waits),
    ]
    title = f"Load test of {configuration.get('Target', 'a server')}"
    return page(title, text_report(configuration, summary), charts)


def _shares(values_s: Iterable[float | None]) -> list[Point]:
    """(milliseconds, percent of the values that are at most this)."""
    ordered = sorted(value for value in values_s if value is not None)
    return [(value * 1000, 100 * index / len(ordered)) for index, value in enumerate(ordered, 1)]


def _steps(points: Sequence[Point]) -> list[Point]:
    """The points of a line that keeps each value until the next."""
    corners = [corner for before, after in pairwise(points) for corner in (before, (after[0], before[1]))]
    return [*corners, *points[-1:]]


def token_rate(done: Sequence[Record]) -> list[Point]:
    """(seconds, tokens per second from then on); an answer in one piece counts as if it came evenly."""
    end_s = max((each.ended_s for each in done), default=0.0)
    if not end_s:
        return []
    bin_s = end_s / _BINS
    tokens = [0.0] * _BINS
    for record in done:
        step_s = (record.ended_s - record.sent_s) / _BINS
        times = record.answer.output_s or [record.sent_s + index * step_s for index in range(_BINS)]
        for at_s in times:
            tokens[min(math.floor(at_s / bin_s), _BINS - 1)] += record.answer.output_tokens / len(times)
    return [*((index * bin_s, count / bin_s) for index, count in enumerate(tokens)), (end_s, 0.0)]
