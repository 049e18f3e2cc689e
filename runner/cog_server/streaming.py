"""Live streaming and cancellation through Cog's server, which an async runner does not give by itself.

Read in coglet's source and seen with Cog 0.23.1: an async generator is collected to its end before
anything is sent, so nothing streams. What does stream is a plain generator returned by an async
``run``; but then Cog's cancel reaches only the finished coroutine, so nothing is cancelled and the
slot stays taken. Here the work is a task of the event loop that owns the request; a plain generator
carries its text to Cog's thread; and cancelling Cog's future cancels the task.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from coglet import CancelationException

_outputs: weakref.WeakKeyDictionary[Generator[str, None, None], LiveOutput] = weakref.WeakKeyDictionary()

_PREDICTION = "_ctx_wrapper"
"""The name of the coroutine that Cog wraps around ``run``, and around nothing else."""


class Mailbox:
    """Calls for an event loop, from any thread: done in order, with one waking for all that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_waking = False

    def post(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_waking = False  # First: what is posted from now on may come too late for this round.
        for _ in range(len(self._calls)):
            self._calls.popleft()()


class LiveOutput:
    """Runs ``source`` as a task of the mailbox's loop; ``chunks()`` yields its text in another thread.

    May be made in any thread; the task gets the context (Cog's logs and metrics) of who makes it. It begins
    when the first text is asked for: where Cog's cancellation hits the thread before, nobody will ask. If it
    began, ``on_end`` is called in the loop, however it ended.
    """

    def __init__(
        self,
        source: AsyncGenerator[str, None],
        mailbox: Mailbox,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._source = source
        self._on_end = on_end
        self._queue: SimpleQueue[str | BaseException | None] = SimpleQueue()
        self._mailbox = mailbox
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def chunks(self) -> Generator[str, None, None]:
        """The text as it comes; all that has arrived is one chunk, so a busy server yields less often."""
        generator = self._drain()
        _outputs[generator] = self
        return generator

    def cancel(self) -> None:
        """Cancel the task, from any thread, at any time."""
        self._mailbox.post(self._cancel)

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
                self._queue.put(text)
        finally:
            await self._source.aclose()
        # NOTE: here, so that the thread, which the last text has woken, finds it beside that.
        self._queue.put(None)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Whatever happened, Cog's thread waits for it; a task that was cancelled may never have begun."""
        if task.cancelled():
            self._queue.put(CancelationException("cancelled"))
        elif (error := task.exception()) is not None:
            self._queue.put(error)
        self._on_end()

    def _drain(self) -> Generator[str, None, None]:
        is_over = False
        try:
            self._mailbox.post(self._start)
            while not is_over:
                text, end, is_over = self._take()
                if text:
                    yield text
                if end is not None:
                    raise end
        finally:
            if not is_over:
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


def prediction_id() -> str:
    """The id of the prediction that runs in the current context; blank outside one.

    NOTE: Cog tells it nobody, but keeps it in a context variable to know whose the printed lines are.
    """
    context = contextvars.copy_context()
    return next((str(context[each]) for each in context if each.name == "_coglet_prediction_id"), "")


def join_cog() -> None:
    """Run predictions in the thread that Cog gives them, and make Cog's cancel reach their ``LiveOutput``.

    NOTE: Cog submits every prediction by ``asyncio.run_coroutine_threadsafe``, looked up at the
    call, waits for the future in the same thread, and cancels by ``future.cancel()``. All are Python's
    and public, so they are where we join. ``run`` never waits: done on the spot instead of in
    the loop, it costs two wakings less, which was a third of Cog's time for a prediction.
    """
    original = asyncio.run_coroutine_threadsafe
    if getattr(original, "reaches_live_outputs", False):
        return

    def run_coroutine_threadsafe(
        coro: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop
    ) -> Future[Any]:
        is_prediction = getattr(coro, "__name__", "") == _PREDICTION
        future = _run_here(coro) if is_prediction else original(coro, loop)
        cancel_coroutine = future.cancel
        future.cancel = lambda: _cancel(future, cancel_coroutine)  # type: ignore[method-assign]
        return future

    run_coroutine_threadsafe.reaches_live_outputs = True  # type: ignore[attr-defined]
    asyncio.run_coroutine_threadsafe = run_coroutine_threadsafe


def _run_here(coro: Coroutine[Any, Any, Any]) -> Future[Any]:
    """The finished future of a coroutine that never waits, run in a context of its own."""
    future: Future[Any] = Future()
    try:
        contextvars.copy_context().run(coro.send, None)
    except StopIteration as stop:
        future.set_result(stop.value)
    except CancelationException:
        future.cancel()
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is raised where Cog asks for the result
        future.set_exception(exc)
    else:
        coro.close()
        future.set_exception(RuntimeError("run waited for something, which only its LiveOutput may"))
    return future


def _cancel(future: Future[Any], cancel_coroutine: Callable[[], bool]) -> bool:
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
