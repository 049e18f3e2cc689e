"""Coalescing by a fake clock: how many tokens a chunk has, for each step of the engine and load."""

import asyncio

import pytest

from errors.engines import EngineCrashed
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.messages import Finished
from runner.engines.protocol.received_stream import ReceivedStream

CHUNK_CPU_S = 0.0001


class Process:
    """Streams of which each gets a token per step; each chunk takes ``CHUNK_CPU_S`` of CPU time."""

    def __init__(self, num_streams: int, step_s: float, factor: float = 8) -> None:
        self._cpu_s = 0.0
        self.now_s = 1000.0
        self._num_streams = num_streams
        self._step_s = step_s
        self._coalescing = Coalescing(factor, lambda: self._cpu_s)

    def step(self) -> None:
        self.now_s += self._step_s
        self._coalescing.measure(self._num_streams, self.now_s)

    def chunks(self, num_tokens: int) -> list[int]:
        chunks, taken_s, arrivals = [], self.now_s, 0
        for _ in range(num_tokens):
            self.step()
            arrivals += 1
            if not self._coalescing.holds(self.now_s - taken_s, self._step_s, arrivals):
                chunks.append(arrivals)
                taken_s, arrivals = self.now_s, 0
                for _ in range(self._num_streams):
                    self._coalescing.taken()
                self._cpu_s += self._num_streams * CHUNK_CPU_S
        return chunks


@pytest.mark.parametrize(
    ("num_streams", "step_s", "num_tokens"),
    [
        (1, 0.001, 1),
        (8, 0.010, 1),
        (24, 0.010, 1),
        (32, 0.020, 1),
        (32, 0.0065, 3),
        (128, 0.010, 5),
        (256, 0.001, 50),
        (256, 0.020, 2),
        (256, 0.030, 2),
        (256, 0.040, 2),
        (256, 0.060, 1),
        (512, 0.049, 2),
    ],
)
def test_chunks_have_the_tokens_that_the_load_asks_for(
    num_streams: int, step_s: float, num_tokens: int
) -> None:
    process = Process(num_streams, step_s)
    process.chunks(300)  # Until the cost is known.
    assert all(abs(each - num_tokens) <= num_tokens / 50 for each in process.chunks(300))


@pytest.mark.parametrize("step_s", [0.0005, 0.003, 0.007, 0.011, 0.017, 0.024, 0.026, 0.039, 0.05, 0.09])
def test_no_chunk_waits_longer_than_two_steps_or_50_ms(step_s: float) -> None:
    assert max(Process(50, step_s, factor=800).chunks(300)) * step_s <= max(2 * step_s, 0.05) + 1e-9


def test_one_expensive_moment_does_not_make_an_idle_server_busy() -> None:
    now_s, cpu_s = 1000.0, 0.0
    coalescing = Coalescing(8, lambda: cpu_s)
    for number in range(500):
        now_s += 0.02
        cpu_s += CHUNK_CPU_S + (0.3 if number == 250 else 0.0)
        coalescing.taken()
        coalescing.measure(1, now_s)
        assert not coalescing.holds(0.02, 0.02, 1)


def busy() -> Coalescing:
    """Busy from the first chunk on: each took a second."""
    coalescing = Coalescing(8, iter((0.0, 1.0)).__next__)
    coalescing.taken()
    coalescing.measure(1000, 1000.0)
    return coalescing


async def test_the_first_tokens_and_the_end_do_not_wait() -> None:
    now_s = asyncio.get_running_loop().time()
    stream = ReceivedStream(now_s, coalescing=busy())
    assert not stream.receive([1], now_s + 0.01)
    assert (await stream.take()).tokens == [1]
    assert stream.receive([2], stream.taken_s + 0.04)
    stream.finish(Finished(1, "length"), stream.taken_s + 0.05)
    last = await stream.take()
    assert (last.tokens, last.finish_reason) == ([2], "length")


async def test_held_tokens_come_with_the_next_ones_or_before_an_error() -> None:
    now_s = asyncio.get_running_loop().time()
    stream = ReceivedStream(now_s, coalescing=busy())
    stream.receive([1], now_s)
    await stream.take()
    assert stream.receive([2], stream.taken_s + 0.04)
    taking = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    assert not taking.done()
    assert not stream.receive([3], stream.taken_s + 0.08)
    assert not stream.receive([4], stream.taken_s + 0.081), "it has been released"
    stream.deliver(stream.taken_s + 0.081)
    assert (await taking).tokens == [2, 3, 4]
    assert stream.receive([5], stream.taken_s + 0.04)
    error = EngineCrashed(engine_kind="paced", reason="test")
    stream.fail(error)
    assert (await stream.take()).tokens == [5]
    with pytest.raises(EngineCrashed):
        await stream.take()


async def test_held_tokens_are_released_when_the_next_ones_are_late() -> None:
    now_s = asyncio.get_running_loop().time()
    stream = ReceivedStream(now_s, coalescing=busy())
    stream.receive([1], now_s)
    await stream.take()
    stream.receive([2], stream.received_s + 0.04)
    taking = asyncio.ensure_future(stream.take())
    stream.release(stream.received_s + 0.05)
    await asyncio.sleep(0)
    assert not taking.done()
    stream.release(stream.received_s + 0.07)
    assert (await taking).tokens == [2]
