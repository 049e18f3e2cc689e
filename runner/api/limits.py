"""What bounds a request: how many are at work, how long one may take, whether its client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from starlette.types import Receive

from errors.api import RequestTimedOut, TooManyRequests
from errors.coded_error import CodedError

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection: nobody is there to be answered."""


class Admission:
    """Counts the texts that are being generated."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0

    @contextmanager
    def admitted(self, count: int) -> Iterator[Callable[[], None]]:
        """Hold places for so many until the body ends, or calls what it is given.

        Raises E1607 if there are not enough.
        """
        if self.running + count > self.most:
            raise TooManyRequests(running=self.running, asked=count, most=self.most)
        self.running += count
        with ExitStack() as places:
            places.callback(self._leave, count)
            yield places.close

    def _leave(self, count: int) -> None:
        self.running -= count


async def run_within(
    work: Coroutine[Any, Any, T], receive: Receive, timeout_s: float, fail: Callable[[CodedError], None]
) -> T:
    """The result of ``work``, which is ended, and has freed what it held, when this returns or raises.

    Raises E2601 after ``timeout_s``, of which ``fail`` is told before ``work`` is ended, and ClientGone. The
    request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_await_gone(receive))
    try:
        await asyncio.wait({task, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        error = RequestTimedOut(timeout_s=timeout_s)
        fail(error)
        raise error
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})


async def _await_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
