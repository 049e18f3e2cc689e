"""Limits of a request: how many texts at once, how long it may take, and its client's connection."""

import asyncio
import mmap
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

from errors.api import RequestTimedOut, TooManyRequests
from errors.coded_error import CodedError
from runner.api.call import Call

T = TypeVar("T")

_NUMBER_BYTES = 8


def shared_counts(num_processes: int) -> int:
    """Create shared memory with one count of texts per API process, all 0, and return its descriptor."""
    descriptor = os.memfd_create("openai-texts")
    os.truncate(descriptor, _NUMBER_BYTES * num_processes)
    return descriptor


def clear_count(descriptor: int, number: int) -> None:
    """Reset the count of a process that has ended."""
    os.pwrite(descriptor, bytes(_NUMBER_BYTES), _NUMBER_BYTES * number)


class TextLimit:
    """A limit of texts that are being generated, by this process and the others of the API.

    NOTE: processes that count at the same moment may together be above the limit, each by one request.
    """

    def __init__(self, limit: int, shared: int | None = None, number: int = 0) -> None:
        """Initialize. ``shared``: see ``shared_counts``; ``number``: this process's place in it."""
        self.limit = limit
        memory = mmap.mmap(-1, _NUMBER_BYTES) if shared is None else mmap.mmap(shared, 0)
        self._counts = memoryview(memory).cast("q")
        self._number = number

    def admit(self, count: int) -> "Admitted":
        """Count ``count`` texts until the result's block ends. Raises E1607 if they are too many."""
        self.check(count)
        self._counts[self._number] += count
        return Admitted(self, count)

    def check(self, count: int) -> None:
        """Raise E1607 if ``count`` more are too many."""
        running = sum(self._counts)
        if running + count > self.limit:
            raise TooManyRequests(running=running, asked=count, most=self.limit)

    def subtract(self, count: int) -> None:
        self._counts[self._number] -= count


class Admitted:
    """Texts that are counted until ``release``, or until the block ends."""

    def __init__(self, text_limit: TextLimit, count: int) -> None:
        self._limit = text_limit
        self._count = count

    def release(self) -> None:
        self._limit.subtract(self._count)
        self._count = 0

    def __enter__(self) -> "Admitted":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


async def run_within(
    work: Coroutine[Any, Any, T],
    call: Call,
    timeout_s: float,
    fail: Callable[[CodedError], None] = lambda error: None,
) -> T:
    """Run ``work`` in the caller's task and return its result. Once this ends, so has ``work``.

    Raises E2601 after ``timeout_s``, passed to ``fail`` before ``work`` is cancelled, and ClientDisconnect.
    The request's body must have been read.
    """
    connection, task = call.connection, asyncio.current_task()
    assert task is not None
    reason: Exception | None = None

    def end(error: Exception) -> None:
        nonlocal reason
        if reason is None:
            reason = error
            task.cancel()

    def time_out() -> None:
        error = RequestTimedOut(timeout_s=timeout_s)
        fail(error)
        end(error)

    timer = asyncio.get_running_loop().call_later(timeout_s, time_out)
    try:
        if connection is not None:
            if connection.is_disconnected:
                work.close()
                raise ClientDisconnect
            connection.on_disconnect = lambda: end(ClientDisconnect())
        return await work
    except (Exception, asyncio.CancelledError):
        if reason is None:
            raise
        if sys.version_info >= (3, 11):
            task.uncancel()
        raise reason from None
    finally:
        reason = None  # It refers to this frame.
        timer.cancel()
        if connection is not None:
            connection.on_disconnect = None
