"""Calls wait for Triton one of each client in turn, and those that end meanwhile never begin."""

import asyncio
from functools import partial

from runner.triton_server.front.starts import Starts


def test_a_client_with_few_calls_does_not_wait_for_all_of_one_with_many() -> None:
    begun: list[str] = []
    starts = Starts(1)
    first = starts.add("hostile", lambda: None)
    hostile = [starts.add("hostile", partial(begun.append, f"hostile {number}")) for number in range(100)]
    starts.add("other", partial(begun.append, "other"))
    hostile[0].end()
    assert begun == []
    first.end()
    hostile[1].end()
    assert begun == ["hostile 1", "other"]


def test_a_call_gives_way_to_one_of_a_client_that_has_fewer() -> None:
    starts = Starts(1)
    refused: list[int] = []
    starts.add("hostile", lambda: None)
    for number in range(3):
        starts.add("hostile", lambda: None).on_refusal = partial(refused.append, number)
    assert starts.make_room("other")
    assert refused == [2]
    assert not starts.make_room("hostile")
    assert starts.make_room("other")
    assert not starts.make_room("other")
    assert refused == [2, 1]


def test_nothing_is_kept_of_calls_that_ended() -> None:
    starts = Starts(2)
    calls = [starts.add(number % 3, lambda: None) for number in range(30)]
    for call in [*calls[::2], *calls[1::2]]:
        call.end()
        call.end()
    assert (starts._begun, starts._waiting) == ({}, {})


def test_a_call_that_is_not_answered_soon_makes_place_unless_its_client_has_left() -> None:
    """One that is not streamed has no answer until its end."""

    async def work() -> None:
        begun = asyncio.Event()
        starts = Starts(2, begin_s=0.01)
        left = starts.add("hostile", lambda: None)
        left.is_cancelled = True
        starts.add("other", lambda: None)
        starts.add("other", begun.set)
        starts.add("other", lambda: None)
        assert not begun.is_set()
        await asyncio.wait_for(begun.wait(), 60)
        assert left in starts._begun

    asyncio.run(work())
