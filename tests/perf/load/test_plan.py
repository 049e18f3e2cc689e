"""When requests are sent."""

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
            Plan(*values)
