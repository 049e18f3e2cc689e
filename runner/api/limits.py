"""Limits of a request: how many texts at once, how long it may take, and its client's connection."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from errors.api import RequestTimedOut, TooManyRequests
from errors.coded_error import CodedError

T = TypeVar("T")


class Admission:
    """Counts the texts that are being generated."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0

    @contextmanager
    def admitted(self, count: int) -> Iterator[Callable[[], None]]:
        """Count ``count`` texts until the block ends or calls the function that it is given.

        Raises E1607 if they are too many.
        """
        self.check(count)
        self.running += count
        with ExitStack() as exits:
            exits.callback(self._release, count)
            yield exits.close

    def check(self, count: int) -> None:
        """Raise E1607 if ``count`` more are too many."""
        if self.running + count > self.limit:
            raise TooManyRequests(running=self.running, asked=count, most=self.limit)

    def _release(self, count: int) -> None:
        self.running -= count


async def run_within(
    work: Coroutine[Any, Any, T],
    receive: Receive,
    timeout_s: float,
    fail: Callable[[CodedError], None] = lambda error: None,
) -> T:
    """The result of ``work``. When this returns or raises, ``work`` has ended and released its resources.

    Raises E2601 after ``timeout_s``, passed to ``fail`` before ``work`` is cancelled, and ClientDisconnect.
    The request's body must have been read.
    """
    # NOTE: a task of its own: each of its steps would else pass all callers of this, once per token.
    task = asyncio.ensure_future(work)
    reason: Exception | None = None

    def end(error: Exception) -> None:
        nonlocal reason
        # NOTE: ``work`` may have ended in the same step of the event loop.
        if reason is None and task.cancel():
            reason = error

    def time_out() -> None:
        error = RequestTimedOut(timeout_s=timeout_s)
        fail(error)
        end(error)

    timer = asyncio.get_running_loop().call_later(timeout_s, time_out)
    disconnect = asyncio.ensure_future(_await_disconnect(receive))
    disconnect.add_done_callback(lambda done: None if done.cancelled() else end(ClientDisconnect()))
    try:
        return await task
    except (Exception, asyncio.CancelledError):
        if reason is None:
            raise
        raise reason from None
    finally:
        timer.cancel()
        disconnect.cancel()


async def _await_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
