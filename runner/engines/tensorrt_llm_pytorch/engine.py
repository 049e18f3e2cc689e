"""A running engine of the LLM API: submits requests, reports their tokens, completes cancellations.

The library has an event loop's objects for each request, so a thread of its own runs a loop, and a task there
follows each request. All methods with an underscore run in that thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from errors.coded_error import CodedError
from errors.engines import RequestRefused
from errors.requests import AdapterRefused
from runner.engines.adapters import Adapters, LoraRequest
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    FinishReason,
    LoadAdapter,
    Ready,
    Statistics,
    Submit,
    TokenLogProb,
)
from runner.engines.tensorrt_llm_pytorch.request import (
    Running,
    check,
    guided_decoding,
    probe_params,
    relative_priority,
    sampling_params,
)
from runner.engines.tensorrt_llm_pytorch.statistics import read_statistics, when_idle

if TYPE_CHECKING:
    from runner.engines.guides.compile import GuideCompiler
    from runner.engines.guides.follow import Follower
    from runner.engines.tensorrt_llm_pytorch.kv_events import KvEvents

_STATISTICS_S = 0.5
_CLOSE_TIMEOUT_S = 3.0
_EVENTS_S = 0.1
_NO_WAIT_S = 1e-6
"""Timeout of a call that reads what the library has now.

NOTE: versions with an RPC proxy block the loop until there is something or the timeout ends, in steps of
0.1 s. With 0 other versions return nothing, or raise.
"""
_REQUEST_ERRORS = {"RequestError", "ValueError", "TypeError"}
"""Errors of a request alone. The library's RequestError is a RuntimeError, as are those that end it."""

log = logging.getLogger("cog_triton.engine")


class LlmApiEngine:
    """See ``runner.engines.protocol.adapter.OrderedAdapter``."""

    def __init__(
        self,
        llm: Any,
        sink: Sink,
        ready: Ready,
        *,
        prompt_limit: int,
        optional: frozenset[str],
        adapters: Adapters,
        kv_events: KvEvents | None = None,
        guides: GuideCompiler | None = None,
        guide_backend: str = "",
        guide_end_id: int | None = None,
    ) -> None:
        """Initialize.

        ``optional``: the arguments of ``interface.SINCE`` that the library has. ``adapters``: the library's
        LoRA requests by name. ``guides`` checks guides.
        """
        self._llm = llm
        self._sink = sink
        self.ready = ready
        self._prompt_limit = prompt_limit
        self._optional = optional
        self._adapters = adapters
        self._kv_events = kv_events
        self._guides = guides
        self._guide_backend = guide_backend
        self._guide_end_id = guide_end_id
        self._running: dict[int, Running] = {}
        # One entry for each request: it may have made several steps meanwhile.
        self._new: dict[int, list[int]] = {}
        self._new_log_probs: dict[int, list[TokenLogProb]] = {}
        self._statistics = Statistics(active=0, queued=0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_started = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-requests", daemon=True)
        self._thread.start()

    def submit(self, request: Submit) -> None:
        try:
            check(request, self._prompt_limit, self._optional)
            with self._adapters.lock:
                lora = self._adapters.find(request.lora_name) if request.lora_name else None
                self._running[request.request_id] = Running(request, self._guide_end_id, lora)
        except CodedError as error:
            self._sink.failed(request.request_id, error)
            return

        def start(guide: Follower | CodedError | None) -> None:
            self._loop.call_soon_threadsafe(self._start, request, guide)

        if request.guide is None or self._guides is None:
            start(None)
        else:
            is_wanted = partial(self._running.__contains__, request.request_id)
            self._guides.submit(request.guide, start, is_wanted)

    def cancel(self, request_id: int) -> None:
        self._loop.call_soon_threadsafe(self._cancel, request_id)

    def statistics(self) -> Statistics:
        now = self._statistics if self._running else when_idle(self._statistics)
        begun, waiting = self._adapters.by_state(self._running.values())
        return msgspec.structs.replace(now, running_adapters=begun, waiting_adapters=waiting)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._llm.shutdown()

    # Orders

    def load_adapter(self, order: LoadAdapter) -> dict[str, str]:
        return self._adapters.load(order, self, self._running.values())

    def unload_adapter(self, name: str) -> dict[str, str]:
        return self._adapters.unload(name, self, self._running.values())

    def add_lora(self, lora_request: LoraRequest) -> None:
        """Have the library load an adapter by a request of one token. Raises E1014.

        Call it from another thread than the loop's.
        """
        asyncio.run_coroutine_threadsafe(self._probe(lora_request), self._loop).result()

    def remove_lora(self, lora_id: int) -> None:
        """Do nothing: the library evicts adapters that no request uses.

        Some versions keep the tensors of each number on the GPU until the engine starts again, so
        ``Adapters`` uses the number again when the same adapter is loaded again.
        """

    async def _probe(self, lora: LoraRequest) -> None:
        try:
            result = self._llm.generate_async([0], probe_params(), streaming=True, lora_request=lora)
            async for _ in result:
                pass
        except Exception as exc:
            if not _is_of_request(exc):
                self._sink.broken(exc)
            reason = f"TensorRT-LLM can't load it ({_first_line(exc)})"
            raise AdapterRefused(adapter=lora.lora_name.rpartition("@")[0], reason=reason) from exc

    # In the loop's thread

    def _run(self) -> None:
        self._spawn(self._read_statistics())
        if self._kv_events is not None:
            self._spawn(self._publish_events(self._kv_events))
        self._loop.run_forever()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start(self, request: Submit, guide: Follower | CodedError | None) -> None:
        """Give the request to the library. ``guide``: what the check of its guide made, or the error."""
        running = self._running.get(request.request_id)
        if running is None:  # It was cancelled.
            return
        if isinstance(guide, CodedError):
            self._fail(running, guide)
            return
        try:
            parameters = sampling_params(request, self.ready.vocab_size, self._guide_end_id)
            if request.guide is not None:
                parameters.guided_decoding = guided_decoding(request.guide, self._guide_backend)
            # NOTE: earlier versions do not have all of these arguments: they get what the request needs.
            more: dict[str, Any] = {"lora_request": running.lora, "cache_salt": request.cache_salt}
            if request.priority:
                more["priority"] = relative_priority(request.priority)
            given = {name: value for name, value in more.items() if value is not None}
            running.result = self._llm.generate_async(request.input_ids, parameters, streaming=True, **given)
        except Exception as exc:  # noqa: BLE001 - of the library
            self._fail(running, exc)
        else:
            self._has_started.set()
            self._spawn(self._follow(running))

    async def _follow(self, running: Running) -> None:
        """Report a request's tokens until the library has ended it, and freed what it held."""
        try:
            async for result in running.result:
                # NOTE: not published, and absent in early versions.
                cached = getattr(result, "cached_tokens", None)
                if not running.has_begun and cached is not None:
                    self._sink.cached([(running.request_id, cached)])
                running.has_begun = True
                self._take(running, result.outputs[0])
        except Exception as exc:  # noqa: BLE001 - of the library
            with suppress(Exception):  # It has ended already, unless its output can't be read.
                running.result.abort()
            self._fail(running, exc)
            return
        reason = running.reason(running.result.outputs[0])
        if reason is None:
            ended = running.result.outputs[0].finish_reason
            self._fail(running, RequestRefused(reason=f"it ended with {ended!r}"))
        else:
            self._finish(running, reason)

    def _take(self, running: Running, output: Any) -> None:
        if running.aborted_for is not None:
            return
        tokens, log_probs, is_stopped = running.take(output)
        if tokens:
            if not self._new:  # The other requests' tokens of this step are ready, too.
                self._loop.call_soon(self._flush)
            self._new.setdefault(running.request_id, []).extend(tokens)
        if log_probs:
            self._new_log_probs.setdefault(running.request_id, []).extend(log_probs)
        if is_stopped:
            running.aborted_for = "stop"
            running.result.abort()

    def _flush(self) -> None:
        """Report all tokens since the last call."""
        log_probs, self._new_log_probs = self._new_log_probs, {}
        tokens, self._new = self._new, {}
        if log_probs:
            self._sink.log_probs(log_probs.items())
        if tokens:
            self._sink.tokens(tokens.items())

    def _cancel(self, request_id: int) -> None:
        running = self._running.get(request_id)
        if running is None or running.aborted_for is not None:
            return
        running.aborted_for = "cancelled"
        if running.result is None:
            self._finish(running, "cancelled")
        else:
            running.result.abort()

    def _finish(self, running: Running, reason: FinishReason) -> None:
        self._flush()
        if self._running.pop(running.request_id, None) is not None:
            self._sink.finished(running.request_id, reason)

    def _fail(self, running: Running, error: Exception) -> None:
        """Fail a request, and with it the engine unless the error is the request's alone."""
        self._flush()
        if self._running.pop(running.request_id, None) is None:
            return
        if isinstance(error, CodedError):
            self._sink.failed(running.request_id, error)
            return
        self._sink.failed(running.request_id, RequestRefused(reason=_first_line(error)))
        if not _is_of_request(error):
            self._sink.broken(error)

    async def _read_statistics(self) -> None:
        """Read the library's statistics, which it makes in each iteration, while there are requests."""
        try:
            while True:
                await asyncio.sleep(_STATISTICS_S)
                if self._running:
                    async for stats in _read(self._llm.get_stats_async(timeout=_NO_WAIT_S)):
                        self._statistics = read_statistics(stats)
        except Exception as exc:  # noqa: BLE001 - of the library, which does without them
            log.warning("TensorRT-LLM has no statistics: %s", exc)

    async def _publish_events(self, events: KvEvents) -> None:
        # NOTE: some versions fail before their first request.
        await self._has_started.wait()
        try:
            while True:
                async for event in _read(self._llm.get_kv_cache_events_async(timeout=_NO_WAIT_S)):
                    events.publish(event)
                await asyncio.sleep(_EVENTS_S)
        except Exception:
            log.exception("no more KV events are published: TensorRT-LLM's can't be read")
            events.clear()


async def _read(results: Any) -> AsyncIterator[Any]:
    """Yield the results that the library has now."""
    # NOTE: in some versions results that were read to their end have no more until the next request.
    getattr(results, "mark_undone", lambda: None)()
    async for found in results:
        # NOTE: some versions return those of an iteration together.
        for each in found if isinstance(found, list) else [found]:
            yield each


def _is_of_request(error: Exception) -> bool:
    return bool({each.__name__ for each in type(error).__mro__} & _REQUEST_ERRORS)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
