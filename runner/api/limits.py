"""Limits of a request: how many texts at once, how long it may take, and its client's connection."""

import asyncio
import mmap
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from errors.api import RequestTimedOut, TooManyRequests
from errors.coded_error import CodedError

T = TypeVar("T")


_NUMBER_BYTES = 8


def shared_counts(num_processes: int) -> int:
    """The file descriptor of a number of texts for each process of the API, in memory; all are 0."""
    descriptor = os.memfd_create("openai-texts")
    os.truncate(descriptor, _NUMBER_BYTES * num_processes)
    return descriptor


def clear_count(descriptor: int, number: int) -> None:
    """Forget the texts of a process that has ended."""
    os.pwrite(descriptor, bytes(_NUMBER_BYTES), _NUMBER_BYTES * number)


class Admission:
    """Counts the texts that are being generated, by this process and by the others of the API.

    NOTE: processes that count at the same moment may together be above the limit, each by one request.
    """

    def __init__(self, limit: int, shared: int | None = None, number: int = 0) -> None:
        """``shared``: of ``shared_counts``; ``number``: this process's place in it."""
        self.limit = limit
        memory = mmap.mmap(-1, _NUMBER_BYTES) if shared is None else mmap.mmap(shared, 0)
        self._counts = memoryview(memory).cast("q")
        self._number = number

    @contextmanager
    def admitted(self, count: int) -> Iterator[Callable[[], None]]:
        """Count ``count`` texts until the block ends or calls the function that it is given.

        Raises E1607 if they are too many.
        """
        self.check(count)
        self._counts[self._number] += count
        with ExitStack() as exits:
            exits.callback(self._release, count)
            yield exits.close

    def check(self, count: int) -> None:
        """Raise E1607 if ``count`` more are too many."""
        running = sum(self._counts)
        if running + count > self.limit:
            raise TooManyRequests(running=running, asked=count, most=self.limit)

    def _release(self, count: int) -> None:
        self._counts[self._number] -= count


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
