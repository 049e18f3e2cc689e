"""Limits that the processes of the API have together."""

import os

import pytest

from errors.api import TooManyRequests
from runner.api.limits import TextLimit, clear_count, shared_counts


def test_the_texts_of_all_processes_count_and_those_of_one_that_ended_do_not() -> None:
    shared = shared_counts(2)
    first, second = (TextLimit(5, shared, number) for number in range(2))
    with first.admit(3), second.admit(2) as texts:
        with pytest.raises(TooManyRequests) as raised:
            first.check(1)
        assert raised.value.facts == {"running": 5, "asked": 1, "most": 5}
        texts.release()
        first.check(2)
        clear_count(shared, 0)  # The first process was killed.
        second.check(5)
    os.close(shared)


def test_a_process_alone_counts_its_own() -> None:
    text_limit = TextLimit(2)
    with text_limit.admit(2), pytest.raises(TooManyRequests):
        text_limit.check(1)
    text_limit.check(2)
