"""The plan of a load test: the times of requests."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count, repeat, takewhile
from typing import Literal, get_args

from errors.requests import InvalidInput

Unit = Literal["rps", "batch", "concurrency"]
"""Unit. ``rps``: open loop, at set times whatever the server does. ``batch``: that many at once, again
when all are answered and a pause is over. ``concurrency``: always that many, each followed by another."""


@dataclass(frozen=True)
class Plan:
    """``rate`` is requests per second, or the number of requests at once."""

    unit: Unit
    rate: float
    duration_s: float
    pause_s: float = 1.0
    is_poisson: bool = False
    timeout_s: float = 600.0
    most_requests: int = 0
    """Number of requests after which it ends, with ``concurrency``; 0: only the duration ends it."""

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InvalidInput(name="unit", expected="rps, batch or concurrency", value=self.unit)
        for name, value in (("rate", self.rate), ("duration", self.duration_s), ("timeout", self.timeout_s)):
            if not 0 < value < float("inf"):
                raise InvalidInput(name=name, expected="above 0 and finite", value=value)
        if not 0 <= self.pause_s < float("inf"):
            raise InvalidInput(name="pause", expected="at least 0", value=self.pause_s)
        if self.unit != "rps" and self.rate != int(self.rate):
            raise InvalidInput(
                name="rate", expected=f"a whole number where the unit is {self.unit}", value=self.rate
            )

    @property
    def most_at_once(self) -> int:
        """Number of requests in flight together; 0 for an open loop, where it depends on the server."""
        return 0 if self.unit == "rps" else int(self.rate)


def arrivals(plan: Plan) -> Iterator[float]:
    """Yield the seconds since the start at which an open loop sends, each below the plan's duration."""
    times: Iterator[float] = (number / plan.rate for number in count())
    if plan.is_poisson:
        times = accumulate(map(random.Random(0).expovariate, repeat(plan.rate)))
    return takewhile(lambda at_s: at_s < plan.duration_s, times)
