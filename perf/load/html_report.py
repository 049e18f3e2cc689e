"""A load test on one page: what was tested, figures, charts over time, and what the terminal shows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from perf.load.chart import Chart, Point, page
from perf.load.record import Record
from perf.load.statistics import concurrency_steps
from perf.load.summary import Summary
from perf.load.text_report import PERCENTILES, text_report, waits

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
    return page(title, text_report(configuration, summary), charts, _facts(configuration) + _figures(summary))


def _facts(configuration: Mapping[str, str]) -> str:
    rows = (
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in configuration.items()
    )
    return f'<dl class="card facts">{"".join(rows)}</dl>'


def _figures(summary: Summary) -> str:
    """Counts and rates, and a table of waits."""
    stream = summary.tokens_per_second_per_stream
    counts = {
        "requests completed": f"{summary.completed} of {summary.requests}",
        "requests/s": f"{summary.requests_per_second:.3f}",
        "output tokens/s, all streams": f"{summary.tokens_per_second:.1f}",
        "tokens/s of one stream, median": f"{stream.p50:.1f}" if stream else "-",
    }
    if summary.good_per_second is not None:
        counts["requests/s within the SLO"] = f"{summary.good_per_second:.3f}"
    tiles = "".join(f"<div><dd>{value}</dd><dt>{name}</dt></div>" for name, value in counts.items())
    head = "".join(f"<th>{name}</th>" for name in ("milliseconds", *PERCENTILES))
    rows = (
        f"<tr><th>{name}</th>{''.join(f'<td>{value * 1000:,.1f}</td>' for value in values)}</tr>"
        for name, values in waits(summary)
    )
    table = f'<div class="card table"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    return f'<dl class="card tiles">{tiles}</dl>{table}'


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
