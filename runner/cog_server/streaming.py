"""Streaming and cancellation of predictions by coglet, which an async ``run`` alone does not give.

coglet collects an async generator to its end before it sends anything. It streams a plain generator that an
async ``run`` returns; but then Cog's cancel reaches only the coroutine, which has finished. So here a task of
the event loop does the work, a plain generator carries its text to coglet's thread, and cancelling coglet's
future cancels the task. ``coglet`` lists what this relies on.
"""

import asyncio
import contextvars
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from coglet import CancelationException

from runner.cog_server.coglet import PREDICTION_COROUTINE, Chunk
from runner.cog_server.loop_link import LoopCalls, WakeUps
from runner.engines.protocol.outlet import Outlet

_RECHECK_S = 2.0
"""Interval at which a thread looks for text that has not woken it."""
_streams: "weakref.WeakKeyDictionary[Generator[str, None, None], PredictionStream]" = (
    weakref.WeakKeyDictionary()
)
_ignored: set[int] = set()
"""Threads in which Python has ignored the cancellation of a prediction."""


class PredictionStream:
    """Source of text that runs as a task of the event loop; ``chunks()`` yields the text in another thread.

    It may be created in any thread; the task gets the creator's context (Cog's logs and metrics). The task
    begins with the first ``next`` on the chunks: if coglet's cancellation ends the thread before, it never
    begins. If it began, ``on_end`` is called in the loop after its end.
    """

    def __init__(
        self, loop_calls: LoopCalls, wake_ups: WakeUps, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self._source: AsyncGenerator[str, None]
        self._on_end = on_end
        self._arrived: deque[str | BaseException | None] = deque()
        self._wake_up: SimpleQueue[None] = SimpleQueue()
        self._has_stopped = False
        self._loop_calls = loop_calls
        self._wake_ups = wake_ups
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def outlet(self) -> Outlet[str]:
        """Outlet into which the source may put text, in the loop, in place of yielding it.

        NOTE: not kept, because it refers to the stream: only the garbage collector would free the two.
        """
        return Outlet(lambda: True, self._put_text)

    def chunks(self, source: AsyncGenerator[str, None]) -> Generator[str, None, None]:
        """Yield the text as it arrives: all that has arrived is a chunk, so a busy server yields less."""
        self._source = source
        generator = self._drain()
        _streams[generator] = self
        return generator

    def cancel(self) -> None:
        """Cancel the task, from any thread, at any time."""
        self._loop_calls.post(self._cancel)

    def wake(self) -> bool:
        """Let the thread take what has arrived. Return False if it has stopped reading."""
        if not self._has_stopped:
            self._wake_up.put(None)
        return not self._has_stopped

    def _start(self) -> None:
        self._task = self._context.run(asyncio.ensure_future, self._pump())
        self._task.add_done_callback(self._end)
        if self._is_cancelled:
            self._task.cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _pump(self) -> None:
        try:
            async for text in self._source:
                self._put(text)
        finally:
            await self._source.aclose()
        # NOTE: here and not in _end: the thread that the last text wakes finds the end beside it.
        self._put(None)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Wake coglet's thread, whatever happened; a cancelled task may never have begun."""
        if task.cancelled():
            self._put(CancelationException("cancelled"))
        elif (error := task.exception()) is not None:
            self._put(error)
        self._on_end()

    def _put_text(self, text: str) -> bool:
        self._put(text)
        return True

    def _put(self, item: str | BaseException | None) -> None:
        self._arrived.append(item)
        if len(self._arrived) == 1:  # Else its turn to be woken has not come yet.
            self._wake_ups.add(self)

    def _drain(self) -> Generator[str, None, None]:
        is_over = False
        try:
            self._loop_calls.post(self._start)
            while not is_over:
                if threading.get_ident() in _ignored:
                    raise CancelationException("cancelled")
                text, end, is_over = self._take()
                if text:
                    yield Chunk(text)
                if end is not None:
                    raise end
        finally:
            self._has_stopped = True
            self._wake_ups.next()
            if not is_over:
                self.cancel()

    def _take(self) -> tuple[str, BaseException | None, bool]:
        """Wait for what arrives. Return the text, the error that ended it, whether it is over."""
        try:
            self._wake_up.get(timeout=_RECHECK_S)
        except Empty:
            pass  # NOTE: coglet may cancel the thread that was about to wake this one.
        arrived = self._arrived
        text, end, is_over = "", None, False
        while arrived and not is_over:
            if isinstance(item := arrived.popleft(), str):
                text += item
            else:
                end, is_over = item, True
        # NOTE: the next thread gets Python's lock as soon as coglet has sent this one's text.
        self._wake_ups.next()
        return text, end, is_over


def hook_coglet() -> None:
    """Run predictions in coglet's own thread, and make Cog's cancel reach their ``PredictionStream``.

    NOTE: coglet submits each prediction by ``asyncio.run_coroutine_threadsafe`` and waits for the future in
    the same thread. ``run`` never waits: run at once instead of in the loop, it saves two wake-ups, which
    were a third of Cog's time for a prediction.
    """
    original = asyncio.run_coroutine_threadsafe
    if getattr(original, "reaches_prediction_streams", False):
        return

    def run_coroutine_threadsafe(
        coro: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> Future[Any]:
        is_prediction = getattr(coro, "__name__", "") == PREDICTION_COROUTINE
        future = _run_here(coro) if is_prediction else original(coro, loop)
        cancel_coroutine = future.cancel
        future.cancel = lambda: _cancel(future, cancel_coroutine)  # type: ignore[method-assign]
        return future

    _notice_ignored_cancellations()
    run_coroutine_threadsafe.reaches_prediction_streams = True  # type: ignore[attr-defined]
    asyncio.run_coroutine_threadsafe = run_coroutine_threadsafe


def _notice_ignored_cancellations() -> None:
    """Notice cancellations that Python ignores: coglet raises them also in callbacks of weak references."""
    ignore = sys.unraisablehook

    def notice(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, CancelationException):
            _ignored.add(threading.get_ident())
        else:
            ignore(unraisable)

    sys.unraisablehook = notice


def _run_here(coro: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Return the finished future of a coroutine that never waits, run in a context of its own."""
    _ignored.discard(threading.get_ident())
    future: Future[Any] = Future()
    context = contextvars.copy_context()
    try:
        context.run(coro.send, None)
    except StopIteration as stop:
        future.set_result(stop.value)
    except CancelationException:
        future.cancel()
    except Exception as exc:  # noqa: BLE001 - coglet raises it where it asks for the result
        future.set_exception(exc)
    else:
        context.run(coro.close)  # coglet's wrapper resets its context variables.
        future.set_exception(RuntimeError("run waited, which only its PredictionStream may do"))
    return future


def _cancel(future: Future[Any], cancel_coroutine: Callable[[], bool]) -> bool:
    if not future.done():
        return cancel_coroutine()
    if future.cancelled() or future.exception() is not None:
        return False
    result = future.result()
    stream = _streams.get(result) if isinstance(result, Generator) else None
    if stream is None:
        return False
    stream.cancel()
    return True
