"""A request without a token by its queue deadline ends with E1012 and is left, so the engine frees it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from errors.requests import QueueDeadlinePassed
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outputs
from runner.generation.admission import Admission, begun_within
from tests.runner.generation.test_admission import CRASHED, StandInEngine


class Source:
    """A source that sends the outputs once ``may_begin`` is set, and notes if it was closed."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs
        self.may_begin = asyncio.Event()
        self.is_left = False

    async def outputs(self) -> AsyncGenerator[Output, None]:
        try:
            await self.may_begin.wait()
            for output in self._outputs:
                yield output
                await asyncio.sleep(0)
        finally:
            self.is_left = True


async def texts(outputs: Outputs) -> list[list[int]]:
    return [output.tokens async for output in outputs]


async def test_a_request_without_a_token_by_then_is_refused_and_left() -> None:
    source = Source(Output([1]))
    with pytest.raises(QueueDeadlinePassed, match=r"E1012.*within 5 ms; .*larger max_queue_ms"):
        await texts(begun_within(source.outputs(), 5))
    assert source.is_left


async def test_a_request_that_has_begun_may_take_as_long_as_it_wants() -> None:
    source = Source(Output([1]), Output([2]), Output([3], finish_reason="length"))
    source.may_begin.set()
    assert await texts(begun_within(source.outputs(), 60_000)) == [[1], [2], [3]]
    assert source.is_left


@pytest.mark.parametrize("num_turns", [None, *range(5)])
async def test_a_client_that_leaves_before_or_at_the_first_token_is_noticed(num_turns: int | None) -> None:
    source = Source(Output([1]), *(Output([2]) for _ in range(100)))
    waiting = asyncio.create_task(texts(begun_within(source.outputs(), 60_000)))
    await asyncio.sleep(0.01)
    if num_turns is not None:
        source.may_begin.set()
    for _ in range(num_turns or 0):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert source.is_left


async def test_the_wait_for_an_engine_that_is_away_counts() -> None:
    engine = StandInEngine(CRASHED)
    engine.is_away = True
    admission = Admission(engine)
    with pytest.raises(QueueDeadlinePassed):
        await texts(admission.generate(Submit(0, [5], 3, max_queue_ms=60)))
    assert admission.num_running == 0
