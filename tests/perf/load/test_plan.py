"""When requests are sent."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors.requests import InvalidInput
from perf.load.plan import Plan, arrivals


@given(st.floats(0.1, 200), st.floats(0.01, 60))
def test_an_even_open_loop_sends_rate_times_duration_requests_at_equal_distances(
    rate: float, duration_s: float
) -> None:
    times = list(arrivals(Plan("rps", rate, duration_s)))
    assert times[0] == 0
    assert abs(len(times) - rate * duration_s) <= 1
    assert times[-1] < duration_s
    assert all(after - before == pytest.approx(1 / rate) for before, after in pairwise(times))


def test_a_poisson_loop_has_the_rate_on_average_and_repeats_itself() -> None:
    plan = Plan("rps", 50, 200, is_poisson=True)
    times = list(arrivals(plan))
    assert times == list(arrivals(plan)) == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(1 / 50, rel=0.1)  # as an exponential distribution has


@given(st.integers(1, 100), st.integers(1, 9), st.sampled_from(["batch", "concurrency"]))
def test_client_processes_share_a_closed_loop_without_a_rest(rate: int, processes: int, unit: str) -> None:
    shares = Plan(unit, rate, 1.0, most_requests=2 * rate).shares(processes)  # type: ignore[arg-type]
    assert sum(plan.rate for plan in shares) == rate
    assert sum(plan.most_requests for plan in shares) == 2 * rate
    assert all(plan.most_at_once >= 1 for plan in shares)


def test_client_processes_share_an_open_loop_without_a_rest() -> None:
    plan = Plan("rps", 30, 1.0)
    for processes in range(1, 6):
        times = [time for share in plan.shares(processes) for time in arrivals(share)]
        assert sorted(times) == list(arrivals(plan))


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    nan, infinite = float("nan"), float("inf")
    for values in (
        ("rps", 0, 1),
        ("rps", nan, 1),
        ("batch", 2.5, 1),
        ("rps", 1, 0),
        ("rps", 1, infinite),
        ("x", 1, 1),
    ):
        with pytest.raises(InvalidInput):
            Plan(*values)  # type: ignore[arg-type]
