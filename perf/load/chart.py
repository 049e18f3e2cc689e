"""Charts as inline SVG: no script, no fetch; colours are CSS variables, so that light and dark both fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 12, 40
_TICKS = 5
_MOST_POINTS = 2000


@dataclass(frozen=True)
class Series:
    """``kind`` is line, steps (a filled area) or dots. ``color`` is a CSS variable's name."""

    name: str
    points: Sequence[Point]
    kind: str = "line"
    color: str = "series-1"


def chart(series: Sequence[Series], *, x: str, y: str, y_from_zero: bool = True) -> str:
    """An SVG element with axes named ``x`` and ``y``; of no points it says so."""
    points = [point for each in series for point in each.points]
    if not points:
        return '<p class="empty">nothing to show</p>'
    scale = _Scale.of(points, y_from_zero=y_from_zero)
    marks = "".join(_mark(each, scale) for each in series)
    label = escape(f"{y} by {x}")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(_axes(scale, x, y))}{marks}</svg>{_legend(series)}"
    )


@dataclass(frozen=True)
class _Scale:
    """From values to pixels."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]

    @staticmethod
    def of(points: Sequence[Point], *, y_from_zero: bool) -> _Scale:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        low = 0.0 if y_from_zero else min(ys)
        return _Scale(ticks(min(xs), max(xs)), ticks(low, max(ys)))

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def at(self, point: Point) -> str:
        return f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}"


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, evenly spaced, the first not above ``low`` and the last not below ``high``."""
    span = (high - low) or abs(high) or 1.0
    rough = span / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = magnitude * next(each for each in (1, 2, 2.5, 5, 10) if each * magnitude >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [index * step for index in range(first, last + 1)]


def number(value: float) -> str:
    """As short as it is still exact enough to read."""
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k"
    return f"{value:.4g}"


def _axes(scale: _Scale, x: str, y: str) -> Iterator[str]:
    floor = _HEIGHT - _BOTTOM
    for tick in scale.y_ticks:
        at = scale.y(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(tick)}</text>'
    for tick in scale.x_ticks:
        at = scale.x(tick)
        yield f'<text class="tick" x="{at:.1f}" y="{floor + 16}" text-anchor="middle">{number(tick)}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="axis" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>'
    yield (
        f'<text class="axis" transform="translate(12 {(_TOP + floor) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y)}</text>'
    )


def _mark(series: Series, scale: _Scale) -> str:
    points = thinned(series.points)
    style = f'style="--c: var(--{series.color})"'
    if series.kind == "dots":
        dots = "".join(
            f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="2.5">'
            f"<title>{number(x)}: {number(y)}</title></circle>"
            for x, y in points
        )
        return f'<g class="dots" {style}>{dots}</g>'
    if not points:
        return ""
    if series.kind == "line":
        return f'<polyline class="line" {style} points="{" ".join(map(scale.at, points))}"/>'
    corners = [points[0]]
    for point in points[1:]:
        corners += [(point[0], corners[-1][1]), point]
    area = [(corners[0][0], scale.y_ticks[0]), *corners, (corners[-1][0], scale.y_ticks[0])]
    return (
        f'<polygon class="area" {style} points="{" ".join(map(scale.at, area))}"/>'
        f'<polyline class="line" {style} points="{" ".join(map(scale.at, corners))}"/>'
    )


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most so many that a browser draws them at once, the last kept."""
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return [*points[:-1:stride], points[-1]] if points else points


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(
        f'<li><i style="background: var(--{each.color})"></i>{escape(each.name)}</li>' for each in series
    )
    return f'<ul class="legend">{items}</ul>'
