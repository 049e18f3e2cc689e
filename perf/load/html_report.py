"""A load test on one page: what was tested, figures, and charts as inline SVG without scripts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from perf.load.record import Record
from perf.load.statistics import concurrency_steps
from perf.load.summary import Summary
from perf.load.text_report import text_report

Point = tuple[float, float]
_BINS = 60
_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 12, 40
_TICKS = 5
_MOST_POINTS = 2000


def html_report(configuration: Mapping[str, str], summary: Summary, records: Sequence[Record]) -> str:
    done = [record for record in records if record.is_completed]
    waits = {
        "time to first token": _shares(each.first_token_s for each in done),
        "longest gap in a stream": _shares(max(each.gaps_s, default=None) for each in done),
        "total latency": _shares(each.latency_s for each in done),
    }
    charts = [
        ("Requests in flight", svg("seconds", "requests", {"": _steps(concurrency_steps(records))})),
        ("Output of all streams", svg("seconds", "tokens/s", {"": _steps(token_rate(done))})),
        ("How many waited at most how long", svg("ms", "% of requests", waits)),
    ]
    figures = "\n".join(f'<figure class="card"><h2>{name}</h2>{chart}</figure>' for name, chart in charts)
    title = escape(f"Load test of {configuration.get('Target', 'a server')}")
    rows = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in configuration.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{Path(__file__).with_name("report.css").read_text()}</style>
</head>
<body>
<h1>{title}</h1>
<dl class="card facts">{rows}</dl>
<div class="charts">{figures}</div>
<pre class="card">{escape(text_report(configuration, summary))}</pre>
</body>
</html>
"""


def svg(x: str, y: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """Draw ``lines``, which are points by name. The y axis begins at 0."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return '<p class="empty">nothing to show</p>'
    xs, ys = zip(*points, strict=True)
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(0.0, max(ys))
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - _LEFT)

    def up(value: float) -> float:
        return floor - value / y_ticks[-1] * (floor - _TOP)

    marks = [
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up(each):.1f}" y2="{up(each):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{up(each) + 4:.1f}" text-anchor="end">{each:.5g}</text>'
        for each in y_ticks
    ]
    marks += [
        f'<text class="tick" x="{across(each):.1f}" y="{floor + 16}" text-anchor="middle">{each:.5g}</text>'
        for each in x_ticks
    ]
    legend = ""
    for color, (name, line) in enumerate(lines.items(), 1):
        at = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in thinned(line))
        marks.append(f'<polyline class="line" style="stroke: var(--series-{color})" points="{at}"/>')
        legend += f'<li><i style="background: var(--series-{color})"></i>{escape(name)}</li>'
    legend = f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{y} by {x}">{"".join(marks)}'
        f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT - 6}">{x}</text>'
        f'<text class="axis" transform="translate(12 {_HEIGHT / 2}) rotate(-90)">{y}</text></svg>{legend}'
    )


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers, evenly spaced, the first not above ``low`` and the last not below ``high``."""
    rough = ((high - low) or abs(high) or 1.0) / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(each for each in (1, 2, 2.5, 5, 10) if each * magnitude >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [index * step for index in range(first, last + 1)]


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return every n-th point and the last one: at most as many as a browser draws at once."""
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return [*points[:-1:stride], *points[-1:]]


def _shares(values_s: Iterable[float | None]) -> list[Point]:
    """Return (milliseconds, percent of the values that are at most this)."""
    ordered = sorted(value for value in values_s if value is not None)
    return [(value * 1000, 100 * index / len(ordered)) for index, value in enumerate(ordered, 1)]


def _steps(points: Sequence[Point]) -> list[Point]:
    """Return the points of a line that keeps each value until the next."""
    corners = [corner for before, after in pairwise(points) for corner in (before, (after[0], before[1]))]
    return [*corners, *points[-1:]]


def token_rate(done: Sequence[Record]) -> list[Point]:
    """Return (seconds, tokens per second from then on). An answer in one piece counts as an even one."""
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
