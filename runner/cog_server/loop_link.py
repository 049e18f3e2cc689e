"""Between an event loop and the threads of predictions: calls to make in the loop, and wake-ups from it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

_CHECK_S = 0.02
"""Interval at which the next sleeper is woken in any case."""


class LoopCalls:
    """Calls to make in an event loop, from any thread: in order, with one wake-up for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_waking = False

    def post(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._is_waking:
            try:
                self._is_waking = True
                self._loop.call_soon_threadsafe(self._make)
            except BaseException:
                # NOTE: coglet may cancel a thread here: the next call has to wake the loop.
                self._is_waking = False
                raise

    def _make(self) -> None:
        self._is_waking = False  # First: a call that is posted from now on may be too late for this round.
        for _ in range(len(self._calls)):
            self._calls.popleft()()


class Sleeper(Protocol):
    """A thread that waits for the event loop."""

    def wake(self) -> bool:
        """Wake the thread, from any other. False if it has left; else it calls ``WakeUps.next``."""


class WakeUps:
    """Wake-ups of the threads of an event loop's streams, one after another: each wakes the next one.

    All at once, hundreds of threads would wait for Python's lock, each waking up every 5 ms to find it taken.
    NOTE: if coglet cancels a thread within ``next``, the next one's wake-up is lost: each looks now and then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Sleeper] = deque()
        self._checking: asyncio.TimerHandle | None = None

    def add(self, sleeper: Sleeper) -> None:
        """Wake it when its turn comes. Call this in the event loop."""
        self._due.append(sleeper)
        if len(self._due) == 1:
            self._loop.call_soon(self.next)
            if self._checking is None:
                self._checking = self._loop.call_later(_CHECK_S, self._check)

    def next(self) -> None:
        """Wake the next one, from any thread."""
        due = self._due
        try:
            while due and not due.popleft().wake():
                pass
        except IndexError:
            pass  # Another thread has woken the last one.

    def _check(self) -> None:
        """Wake the next one: a thread that coglet cancels between two steps may not do it."""
        self._checking = self._loop.call_later(_CHECK_S, self._check) if self._due else None
        self.next()
