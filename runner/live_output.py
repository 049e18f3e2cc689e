"""Live streaming and cancellation through Cog's server, which an async runner does not give by itself.

Read in coglet's source and seen with Cog 0.23.1: an async generator is collected to its end before
anything is sent, so nothing streams. What does stream is a plain generator returned by an async
``run``; but then Cog's cancel reaches only the finished coroutine, so nothing is cancelled and the
slot stays taken. Here the work stays in the event loop, as a task that owns the request; a plain
generator carries its text to Cog's thread; and cancelling Cog's future cancels the task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from queue import Empty, SimpleQueue
from typing import Any

from coglet import CancelationException

_outputs: weakref.WeakKeyDictionary[Generator[str, None, None], LiveOutput] = weakref.WeakKeyDictionary()


class LiveOutput:
    """Runs ``source`` as a task of the running loop; ``chunks()`` yields its text in another thread."""

    def __init__(self, source: AsyncGenerator[str, None]) -> None:
        self._source = source
        self._queue: SimpleQueue[str | BaseException | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._pump())

    def chunks(self) -> Generator[str, None, None]:
        """The text as it comes; all that has arrived is one chunk, so a busy server yields less often."""
        generator = self._drain()
        _outputs[generator] = self
        return generator

    def cancel(self) -> None:
        """Cancel the task, from any thread."""
        self._loop.call_soon_threadsafe(self._task.cancel)

    async def _pump(self) -> None:
        end: BaseException | None = None
        try:
            async for text in self._source:
                self._queue.put(text)
        except asyncio.CancelledError:
            end = CancelationException("cancelled")
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is raised where Cog sees it
            end = exc
        finally:
            try:
                await self._source.aclose()
            finally:
                self._queue.put(end)  # Whatever happens: Cog's thread waits for it.

    def _drain(self) -> Generator[str, None, None]:
        try:
            while True:
                text, end, is_over = self._take()
                if text:
                    yield text
                if end is not None:
                    raise end
                if is_over:
                    return
        finally:
            self.cancel()

    def _take(self) -> tuple[str, BaseException | None, bool]:
        """All that has arrived, waiting for the first: text, the error that ended it, whether it is over."""
        parts: list[str] = []
        item = self._queue.get()
        while isinstance(item, str):
            parts.append(item)
            try:
                item = self._queue.get_nowait()
            except Empty:
                return "".join(parts), None, False
        return "".join(parts), item, True


def install_cancellation() -> None:
    """Make the cancel of a future that Cog holds reach the ``LiveOutput`` it resulted in.

    NOTE: Cog submits every prediction by ``asyncio.run_coroutine_threadsafe``, looked up at the
    call, and cancels by ``future.cancel()``; both are Python's and public, so they are where we join.
    """
    original = asyncio.run_coroutine_threadsafe
    if getattr(original, "reaches_live_outputs", False):
        return

    def run_coroutine_threadsafe(
        coro: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> concurrent.futures.Future[Any]:
        future = original(coro, loop)
        cancel_coroutine = future.cancel
        future.cancel = lambda: _cancel(future, cancel_coroutine)  # type: ignore[method-assign]
        return future

    run_coroutine_threadsafe.reaches_live_outputs = True  # type: ignore[attr-defined]
    asyncio.run_coroutine_threadsafe = run_coroutine_threadsafe


def _cancel(future: concurrent.futures.Future[Any], cancel_coroutine: Callable[[], bool]) -> bool:
    if not future.done():
        return cancel_coroutine()
    if future.cancelled() or future.exception() is not None:
        return False
    result = future.result()
    output = _outputs.get(result) if isinstance(result, Generator) else None
    if output is None:
        return False
    output.cancel()
    return True
