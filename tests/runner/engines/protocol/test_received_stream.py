"""A stream's outlet: what is put there, and what its reader takes as before."""

import asyncio

import pytest

from runner.engines.protocol.messages import Finished, Output
from runner.engines.protocol.outlet import Outlet
from runner.engines.protocol.received_stream import ReceivedStream


class Reader:
    """A reader of a stream whose outputs come by ``send``."""

    def __init__(self, *, last: int = 0) -> None:
        """``last``: the token after which it wants to end."""
        self.is_ready = True
        self.put: list[list[int]] = []
        self.taken: list[list[int]] = []
        self._last = last
        outlet = Outlet[Output](lambda: self.is_ready, self._put)
        self._stream = ReceivedStream(asyncio.get_running_loop().time(), outlet=outlet)
        self.task = asyncio.ensure_future(self._read())

    def _put(self, output: Output) -> bool:
        if not all(output.tokens):
            raise ValueError("a token is 0")
        self.put.append(output.tokens)
        return self._last not in output.tokens

    async def _read(self) -> None:
        while not self._stream.is_ended or self._stream.has_output:
            self.taken.append((await self._stream.take()).tokens)

    async def send(self, *tokens: int, is_read: bool = True) -> None:
        if is_read:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._stream.receive(list(tokens), 1.0)
        self._stream.deliver(1.0)

    def end(self) -> None:
        self._stream.finish(Finished(1, "length"), 1.0)


async def test_the_first_output_is_taken_and_later_ones_are_put() -> None:
    reader = Reader()
    for token in (1, 2, 3):
        await reader.send(token)
    assert (reader.taken, reader.put) == ([[1]], [[2], [3]])
    reader.end()
    await reader.task
    assert reader.taken == [[1], []]


async def test_the_end_comes_with_the_tokens_before_it() -> None:
    reader = Reader()
    await reader.send(1)
    await asyncio.sleep(0)
    stream = reader._stream
    stream.receive([2], 1.0)
    reader.end()
    stream.deliver(1.0)
    await reader.task
    assert (reader.taken, reader.put) == ([[1], [2]], [])


async def test_a_reader_that_is_busy_or_not_ready_takes_what_waits() -> None:
    reader = Reader()
    await reader.send(1)
    await reader.send(2, is_read=False)  # It has not taken the first yet.
    await reader.send(3)
    reader.is_ready = False
    await reader.send(4)
    reader.is_ready = True
    await reader.send(5, is_read=False)
    await reader.send(6)
    assert (reader.taken, reader.put) == ([[1, 2], [4, 5]], [[3], [6]])
    reader.task.cancel()


async def test_a_reader_that_wants_to_end_or_fails_is_woken() -> None:
    reader = Reader(last=3)
    for token in (1, 2, 3, 4):
        await reader.send(token)
    assert (reader.taken, reader.put) == ([[1], []], [[2], [3], [4]])
    await reader.send(0)
    with pytest.raises(ValueError, match="a token is 0"):
        await reader.task
