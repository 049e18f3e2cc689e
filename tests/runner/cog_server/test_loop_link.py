"""Calls from threads to an event loop, and its wake-ups of threads."""

import asyncio
import threading
from functools import partial

import pytest
from coglet import CancelationException

from runner.cog_server import loop_link
from runner.cog_server.loop_link import LoopCalls, WakeUps
from tests.runner.servers import wait_until

_AN_HOUR_S = 3600.0


class Sleeper:
    def __init__(self, name: str, log: list[str], *, waits: bool = True) -> None:
        self._name = name
        self._log = log
        self._waits = waits

    def wake(self) -> bool:
        if self._waits:
            self._log.append(self._name)
        return self._waits


def add_all(wake_ups: WakeUps, *sleepers: Sleeper) -> None:
    """Add all of them in one step of the loop."""
    for sleeper in sleepers:
        wake_ups.add(sleeper)


def test_posts_from_many_threads_are_all_done_and_each_threads_in_order(
    loop: asyncio.AbstractEventLoop,
) -> None:
    loop_calls = LoopCalls(loop)
    done: list[tuple[int, int]] = []

    def post(thread: int) -> None:
        for number in range(500):
            loop_calls.post(partial(done.append, (thread, number)))

    threads = [threading.Thread(target=post, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(done) == 8 * 500)
    for index in range(8):
        assert [number for thread, number in done if thread == index] == list(range(500))


def test_after_a_thread_that_was_cancelled_as_it_woke_the_loop_others_wake_it(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(_: object) -> None:
        raise CancelationException

    loop_calls, done = LoopCalls(loop), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", cancelled)
        with pytest.raises(CancelationException):
            loop_calls.post(partial(done.append, "a"))
    loop_calls.post(partial(done.append, "b"))
    wait_until(lambda: done == ["a", "b"])


def test_threads_are_woken_one_after_another_in_order(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_link, "_CHECK_S", _AN_HOUR_S)
    wake_ups, log = WakeUps(loop), list[str]()
    loop.call_soon_threadsafe(add_all, wake_ups, *(Sleeper(name, log) for name in "abc"))
    wait_until(lambda: bool(log))
    for num_woken in (1, 2, 3, 3):
        assert log == ["a", "b", "c"][:num_woken]
        wake_ups.next()


def test_a_thread_that_has_left_is_passed_over(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_link, "_CHECK_S", _AN_HOUR_S)
    wake_ups, log = WakeUps(loop), list[str]()
    left, here = Sleeper("left", log, waits=False), Sleeper("here", log)
    loop.call_soon_threadsafe(add_all, wake_ups, left, here)
    wait_until(lambda: log == ["here"])


def test_all_are_woken_although_none_wakes_the_next(loop: asyncio.AbstractEventLoop) -> None:
    """A thread that coglet cancels between two steps may not."""
    wake_ups, log = WakeUps(loop), list[str]()
    for _ in range(2):
        log.clear()
        loop.call_soon_threadsafe(add_all, wake_ups, *(Sleeper(name, log) for name in "abc"))
        wait_until(lambda: log == ["a", "b", "c"])
