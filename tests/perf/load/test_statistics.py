"""Figures against slow and simple ways to the same."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors.requests import InvalidInput
from perf.load.statistics import concurrency, distribution, is_good, parse_slo
from tests.perf.load.records import record

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=20)


def test_nothing_has_no_distribution_and_no_request_no_concurrency() -> None:
    assert distribution([]) is None
    assert concurrency([]).max == 0


@given(spans)
def test_concurrency_is_exact(requests: list[tuple[int, int]]) -> None:
    """Against counting who is in flight in every unit of time: all times here are whole."""
    records = [record(start, start + length) for start, length in requests]
    first, last = min(start for start, _ in requests), max(start + length for start, length in requests)
    levels = [sum(start <= at < start + length for start, length in requests) for at in range(first, last)]
    found = concurrency(records)
    assert found.mean == pytest.approx(statistics.fmean(levels))
    assert (found.min, found.max) == (min(levels), max(levels))
    assert levels.count(found.mode) == max(map(levels.count, levels))
    assert min(statistics.median_low(levels), statistics.median_high(levels)) <= found.median
    assert found.median <= statistics.median_high(levels)


def test_latencies_count_from_when_a_request_was_to_be_sent() -> None:
    late = record(5.0, 7.0, scheduled_s=1.0, output_s=(6.0, 6.5, 7.0))
    assert late.latency_s == 6.0
    assert late.first_token_s == 5.0
    assert late.inter_token_s == 0.5
    assert late.tokens_per_second == 1.5  # the server's speed alone


def test_time_between_tokens_does_not_depend_on_how_they_were_bundled() -> None:
    alone = record(0, 4, output_s=(0.0, 1.0, 2.0, 3.0))
    bundled = record(0, 4, output_s=(0.0, 3.0), tokens=4)
    assert alone.inter_token_s == bundled.inter_token_s == 1.0
    assert bundled.gaps_s == [3.0]


def test_goodput_counts_requests_within_all_limits() -> None:
    slo = parse_slo(["ttft_ms=100", "itl_ms=20", "total_ms=1000"])
    good = record(0, 0.9, output_s=(0.1, 0.11))
    assert is_good(good, slo)
    assert not is_good(record(0, 1.1, output_s=(0.1, 0.11)), slo)
    assert not is_good(record(0, 0.9, output_s=(0.2, 0.21)), slo)
    assert not is_good(record(0, 0.9, output_s=(0.1, 0.2)), slo)
    assert not is_good(record(0, 0.9), slo)  # nothing streamed: nobody saw a first token
    assert not is_good(record(0, 0.9, output_s=(0.1, 0.11), outcome="failed"), slo)


def test_a_limit_that_is_none_is_refused() -> None:
    for term in ("ttft_ms", "ttft_ms=", "ttft_ms=-1", "ttft_ms=nan", "ttft=3", "=3", "total_ms=inf"):
        with pytest.raises(InvalidInput, match="slo must be NAME=MILLISECONDS"):
            parse_slo([term])
