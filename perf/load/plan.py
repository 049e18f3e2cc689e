"""When requests are sent: the plan of a load test, and each client process's share of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from errors.requests import InvalidInput

Unit = Literal["rps", "batch", "concurrency"]
"""``rps``: open loop, requests at their times whatever the server does. ``batch``: that many at once, again
when all are answered and a pause is over. ``concurrency``: always that many, each followed by another."""


@dataclass(frozen=True)
class Plan:
    """``rate`` is requests per second, or the number of requests at once."""

    unit: Unit
    rate: float
    duration_s: float
    pause_s: float = 1.0
    is_poisson: bool = False
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InvalidInput(name="unit", expected="rps, batch or concurrency", value=self.unit)
        if not 0 < self.rate < float("inf"):
            raise InvalidInput(name="rate", expected="a number above 0", value=self.rate)
        if self.unit != "rps" and self.rate != int(self.rate):
            raise InvalidInput(
                name="rate", expected=f"a whole number where the unit is {self.unit}", value=self.rate
            )
        if not 0 < self.duration_s < float("inf"):
            raise InvalidInput(name="duration", expected="seconds above 0", value=self.duration_s)

    @property
    def most_at_once(self) -> int:
        """How many requests are surely in flight together; an open loop does not know."""
        return 0 if self.unit == "rps" else int(self.rate)

    def shares(self, count: int) -> list[Plan]:
        """The plans of ``count`` client processes in closed loop, whose rates add up to this one's."""
        whole, more = divmod(int(self.rate), count)
        sizes = [whole + (index < more) for index in range(count)]
        return [replace(self, rate=size) for size in sizes if size]


def arrivals(plan: Plan) -> Iterator[float]:
    """Seconds since the start at which an open loop sends, in order, each below the plan's duration."""
    if not plan.is_poisson:
        count = 0
        while (at_s := count / plan.rate) < plan.duration_s:
            yield at_s
            count += 1
        return
    draw = random.Random(plan.seed)
    at_s = draw.expovariate(plan.rate)
    while at_s < plan.duration_s:
        yield at_s
        at_s += draw.expovariate(plan.rate)
