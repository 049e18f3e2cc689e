"""Figures of several rounds: medians, and comparisons that are taken within each round.

Machines differ and one machine's speed changes with time: what is compared is measured within seconds of each
other.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping


def median(values: Iterable[float | None]) -> float | None:
    """Of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def within_rounds(
    compare: Callable[[float, float], float],
    mine: Mapping[int, float | None],
    other: Mapping[int, float | None],
) -> float | None:
    """Median over the rounds, which both name, of a figure compared with the other's in the same round."""
    pairs = ((mine[number], other[number]) for number in mine.keys() & other.keys())
    return median(compare(a, b) for a, b in pairs if a is not None and b is not None)
