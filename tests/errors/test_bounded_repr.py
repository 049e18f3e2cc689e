"""An error about a value of any size is made in milliseconds, and small values are quoted as they are."""

import time
from typing import Any

import pytest

from errors.api import UnknownEndpoint
from errors.requests import InvalidInput

HUGE: list[Any] = [
    [1] * 3_000_000,
    {str(number): number for number in range(300_000)},
    "é" * 8_000_000,
    b"x" * 8_000_000,
    10**100_000,
    ["a" * 1000] * 1_000_000,
]
SMALL: list[Any] = [1.5, -7, "it's", b"\xff", [1, "a"], {"b": [{}], "a": 1}, (1,), 10**300]


@pytest.mark.parametrize("value", HUGE, ids=lambda value: type(value).__name__)
def test_a_huge_value_is_shortened_before_it_is_formatted(value: object) -> None:
    start_s = time.process_time()
    error = InvalidInput(name="x", expected="small", value=value)
    assert time.process_time() - start_s < 1  # Milliseconds; 300 times as long without a bound.
    assert str(error).startswith("E1005 InvalidInput: x must be small, but is ")
    assert len(str(error)) < 4100


def test_a_small_value_is_quoted_as_it_is_and_constants_are_those_of_json() -> None:
    constants = ({"a": [None, True], "b": False}, "{'a': [null, true], 'b': false}")
    for value, quoted in [*((value, repr(value)) for value in SMALL), constants]:
        assert InvalidInput(name="x", expected="y", value=value).sentence == f"x must be y, but is {quoted}."
    assert len(str(UnknownEndpoint(method="GET", path="/a" * 4_000_000))) < 4100
