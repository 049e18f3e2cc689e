"""Line charts as inline SVG on one HTML page: no script, nothing is fetched."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

Point = tuple[float, float]

_CSS = Path(__file__).with_name("report.css")
_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 12, 40
_TICKS = 5
_MOST_POINTS = 2000
COLORS = 4


@dataclass(frozen=True)
class Chart:
    """``lines`` are points by name, at most COLORS of them. The y axis begins at 0."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]

    def svg(self) -> str:
        points = [point for line in self.lines.values() for point in line]
        if not points:
            return '<p class="empty">nothing to show</p>'
        xs, ys = zip(*points, strict=True)
        x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(0.0, max(ys))

        def at(point: Point) -> tuple[float, float]:
            across = (point[0] - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
            up = (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
            right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
            return _LEFT + across * (right - _LEFT), floor - up * (floor - _TOP)

        marks = [
            *(_y_tick(at((x_ticks[0], tick))[1], tick) for tick in y_ticks),
            *(_x_tick(at((tick, 0.0))[0], tick) for tick in x_ticks),
            *(_line(color, map(at, thinned(line))) for color, line in enumerate(self.lines.values(), 1)),
        ]
        label = escape(f"{self.y} by {self.x}")
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(marks)}'
            f'<text class="axis" x="{_WIDTH / 2}" y="{_HEIGHT - 6}">{escape(self.x)}</text>'
            f'<text class="axis" transform="translate(12 {_HEIGHT / 2}) rotate(-90)">{escape(self.y)}</text>'
            f"</svg>{_legend(self.lines)}"
        )


def page(title: str, text: str, charts: Sequence[Chart], summary: str = "") -> str:
    """``text`` is shown as it is, below the charts; ``summary`` is HTML, above them."""
    figures = "\n".join(
        f'<figure class="card"><h2>{escape(chart.title)}</h2>{chart.svg()}</figure>' for chart in charts
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_CSS.read_text()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{summary}
<div class="charts">{figures}</div>
<pre class="card">{escape(text)}</pre>
</body>
</html>
"""


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, evenly spaced, the first not above ``low`` and the last not below ``high``."""
    rough = ((high - low) or abs(high) or 1.0) / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(each for each in (1, 2, 2.5, 5, 10) if each * magnitude >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [index * step for index in range(first, last + 1)]


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most as many as a browser draws at once, with the last."""
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return [*points[:-1:stride], *points[-1:]]


def _y_tick(y: float, value: float) -> str:
    grid = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{grid}<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.5g}</text>'


def _x_tick(x: float, value: float) -> str:
    y = _HEIGHT - _BOTTOM + 16
    return f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{value:.5g}</text>'


def _line(color: int, places: Iterator[tuple[float, float]]) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="line" style="stroke: var(--series-{color})" points="{points}"/>'


def _legend(names: Mapping[str, object]) -> str:
    if len(names) < 2:
        return ""
    items = (
        f'<li><i style="background: var(--series-{color})"></i>{escape(name)}</li>'
        for color, name in enumerate(names, 1)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
