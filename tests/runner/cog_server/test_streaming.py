"""Prediction streams: text of a task of an event loop, read in another thread and cancelled by a future.

``test_coglet`` has the rest through coglet itself: threads, context, errors."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from coglet import CancelationException

from runner.cog_server import streaming
from runner.cog_server.loop_link import LoopCalls, WakeUps
from runner.cog_server.streaming import PredictionStream, hook_coglet
from runner.engines.protocol.outlet import Outlet
from tests.runner.servers import DEADLINE_S, wait_until


class Source:
    """A source of text that waits where it is told and remembers how it ended."""

    def __init__(self, *texts: str, fails_with: Exception | None = None, stays: bool = False) -> None:
        self._texts = texts
        self._fails_with = fails_with
        self._stays = stays
        self.has_ended = threading.Event()
        self.was_cancelled = False

    async def text(self) -> AsyncGenerator[str, None]:
        try:
            for text in self._texts:
                yield text
                await asyncio.sleep(0)
            if self._fails_with is not None:
                raise self._fails_with
            if self._stays:
                await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):
            self.was_cancelled = True
            await asyncio.sleep(0)
            raise
        finally:
            self.has_ended.set()


@pytest.fixture
def cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our ``asyncio.run_coroutine_threadsafe``, taken back afterwards."""
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", asyncio.run_coroutine_threadsafe)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    hook_coglet()


Text = Generator[str, None, None]


async def predict(loop: asyncio.AbstractEventLoop, source: AsyncGenerator[str, None]) -> Text:
    """Do what the runner's ``run`` does."""
    return PredictionStream(LoopCalls(loop), WakeUps(loop)).chunks(source)


def run(loop: asyncio.AbstractEventLoop, source: AsyncGenerator[str, None]) -> Future[Text]:
    """Return what Cog holds of a prediction: the future of an async ``run``."""
    return asyncio.run_coroutine_threadsafe(predict(loop, source), loop)


def test_each_text_is_there_before_the_next_is_made(loop: asyncio.AbstractEventLoop) -> None:
    go_on = asyncio.Event()

    async def in_steps() -> AsyncGenerator[str, None]:
        for text in "abc":
            yield text
            await go_on.wait()
            go_on.clear()

    chunks = run(loop, in_steps()).result(DEADLINE_S)
    for text in "abc":
        assert next(chunks) == text
        loop.call_soon_threadsafe(go_on.set)
    assert list(chunks) == []


def test_text_that_is_put_comes_in_order_with_what_is_yielded(loop: asyncio.AbstractEventLoop) -> None:
    async def text() -> AsyncGenerator[str, None]:
        yield "a"
        for put in "bcd":
            assert stream.outlet.put(put)
            await asyncio.sleep(0)
        yield "e"

    stream = PredictionStream(LoopCalls(loop), WakeUps(loop))
    assert stream.outlet.is_ready()
    assert "".join(stream.chunks(text())) == "abcde"


def test_streams_that_share_wake_ups_are_whole_also_beside_those_that_are_left(
    loop: asyncio.AbstractEventLoop,
) -> None:
    calls, wake_ups = LoopCalls(loop), WakeUps(loop)
    texts = [f"{number} " for number in range(200)]

    def read(number: int) -> str:
        chunks = PredictionStream(calls, wake_ups).chunks(Source(*texts).text())
        if number % 3 == 0:
            first = next(chunks)
            chunks.close()
            return first
        texts_read = list(chunks)
        assert all(texts_read)
        return "".join(texts_read)

    with ThreadPoolExecutor(30) as threads:
        read_texts = list(threads.map(read, range(90)))
    whole = "".join(texts)
    assert all(whole.startswith(text) for text in read_texts)
    assert {text for number, text in enumerate(read_texts) if number % 3} == {whole}


def test_a_stream_that_has_ended_is_freed_without_the_garbage_collector(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def text(outlet: Outlet[str]) -> AsyncGenerator[str, None]:
        yield "a"
        outlet.put("b")

    gc.disable()
    try:
        stream = PredictionStream(LoopCalls(loop), WakeUps(loop))
        assert "".join(stream.chunks(text(stream.outlet))) == "ab"
        is_there = weakref.ref(stream)
        del stream
        wait_until(lambda: is_there() is None)
    finally:
        gc.enable()


class LostWakeUps(WakeUps):
    """Each is lost: the thread that has its turn is cancelled before it wakes the next one."""

    def next(self) -> None:
        with suppress(IndexError):
            self._due.popleft()


def test_a_stream_whose_wake_up_is_lost_goes_on(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "_RECHECK_S", 0.01)
    stream = PredictionStream(LoopCalls(loop), LostWakeUps(loop))
    assert "".join(stream.chunks(Source(*"abc").text())) == "abc"


def test_an_error_is_raised_after_the_text_before_it_and_no_text_ends_at_once(
    loop: asyncio.AbstractEventLoop,
) -> None:
    chunks = run(loop, Source("a", "b", fails_with=KeyError("c")).text()).result(DEADLINE_S)
    received: list[str] = []
    with pytest.raises(KeyError, match="c"):
        received.extend(chunks)
    with pytest.raises(StopIteration):
        next(chunks)
    assert list(run(loop, Source().text()).result(DEADLINE_S)) == []


@pytest.mark.usefixtures("cancellation")
@pytest.mark.parametrize("is_left", [False, True])
def test_leaving_the_text_or_cancelling_the_finished_future_cancels_the_work_and_again_does_no_harm(
    loop: asyncio.AbstractEventLoop, is_left: bool
) -> None:
    source = Source("a", stays=True)
    future = run(loop, source.text())
    chunks = future.result(DEADLINE_S)
    assert next(chunks) == "a"
    if is_left:
        chunks.close()
    else:
        assert [future.cancel() for _ in range(20)] == [True] * 20
        with pytest.raises(CancelationException):
            list(chunks)
    assert source.has_ended.wait(DEADLINE_S)
    assert source.was_cancelled
    future.cancel()
    ended = run(loop, Source("b").text())
    assert list(ended.result(DEADLINE_S)) == ["b"]
    ended.cancel()


@pytest.mark.usefixtures("cancellation")
def test_futures_of_others_are_cancelled_as_ever(loop: asyncio.AbstractEventLoop) -> None:
    has_begun = threading.Event()

    async def wait() -> None:
        has_begun.set()
        await asyncio.sleep(60)

    async def fail() -> None:
        raise ValueError("no")

    future = asyncio.run_coroutine_threadsafe(wait(), loop)
    assert has_begun.wait(DEADLINE_S)
    assert future.cancel()
    assert future.cancelled()
    assert not future.cancel()
    finished = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
    assert finished.result(DEADLINE_S) is None
    assert not finished.cancel()
    failed = asyncio.run_coroutine_threadsafe(fail(), loop)
    assert isinstance(failed.exception(10), ValueError)
    assert not failed.cancel()
    installed = asyncio.run_coroutine_threadsafe
    hook_coglet()
    assert asyncio.run_coroutine_threadsafe is installed


def submit(coro: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future[Any]:
    """Submit a prediction as coglet does, in a coroutine of its own name."""

    async def _ctx_wrapper() -> Any:
        return await coro

    return asyncio.run_coroutine_threadsafe(_ctx_wrapper(), loop)


@pytest.mark.usefixtures("cancellation")
def test_cancelling_before_the_work_has_begun_ends_the_text(loop: asyncio.AbstractEventLoop) -> None:
    may_go_on = threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait, 10)

    future = submit(predict(loop, Source("a", stays=True).text()), loop)
    assert future.cancel()
    may_go_on.set()
    with pytest.raises(CancelationException):
        list(future.result(0))


@pytest.mark.usefixtures("cancellation")
def test_a_cancellation_that_python_ignores_ends_the_text(loop: asyncio.AbstractEventLoop) -> None:
    source = Source("a", stays=True)

    def be_cancelled(_: object) -> None:
        raise CancelationException  # As coglet raises it in the thread, between any two steps.

    async def cancelled() -> Text:
        freed = Source("b")
        reference = weakref.ref(freed, be_cancelled)
        del freed
        assert reference() is None
        return await predict(loop, source.text())

    with pytest.raises(CancelationException):
        list(submit(cancelled(), loop).result(0))
    following = submit(predict(loop, Source("a").text()), loop)
    assert list(following.result(0)) == ["a"], "the next one in the thread"


@pytest.mark.usefixtures("cancellation")
def test_work_that_cogs_cancellation_keeps_from_being_asked_for_never_begins(
    loop: asyncio.AbstractEventLoop,
) -> None:
    has_begun = threading.Event()

    async def text() -> AsyncGenerator[str, None]:
        has_begun.set()
        yield "a"

    async def cancelled() -> None:
        await predict(loop, text())
        raise CancelationException  # As coglet raises it in the thread, between any two steps.

    with pytest.raises(CancelledError):
        submit(cancelled(), loop).result(0)
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(DEADLINE_S)
    assert not has_begun.is_set()
