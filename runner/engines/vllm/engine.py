"""A running vLLM engine: submits requests, reports steps, completes cancellations.

It is one class, because every method ends, adds or looks up requests of the same table.

NOTE: importing this module imports vLLM, which reads the environment (``arguments.prepare_environment``).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from engine.pooling import Pooling
from errors.coded_error import CodedError
from errors.engines import EngineAsleep, VllmEngineDied
from runner.engines.adapters import Adapters
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    FinishReason,
    Guide,
    LoadAdapter,
    Ready,
    Sleep,
    Statistics,
    Submit,
    TokenLogProb,
)
from runner.engines.vllm.client import KILLED, Client
from runner.engines.vllm.interface import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from runner.engines.vllm.interface import FinishReason as CoreFinishReason
from runner.engines.vllm.request import (
    Running,
    check_limits,
    core_request,
    drafted_tokens,
    failure,
    structured_outputs,
    token_log_probs,
)

if TYPE_CHECKING:
    from runner.engines.guides.compile import GuideCompiler
    from runner.engines.vllm.images import Images
    from runner.engines.vllm.interface import LoRARequest
from runner.engines.guides.follow import Follower

_MEMORY_TAGS = ("weights", "kv_cache")
"""Parts of the memory of an engine that sleeps, in the order in which they are needed."""
_WAIT_POLL_S = 0.02


class VllmEngine:
    """See ``runner.engines.protocol.adapter.OrderedAdapter``."""

    def __init__(
        self,
        client: Client,
        sink: Sink,
        ready: Ready,
        adapters: Adapters,
        guides: GuideCompiler | None,
        guide_end_id: int | None,
        pooling: Pooling | None = None,
        images: Images | None = None,
        *,
        has_drafts: bool = False,
    ) -> None:
        self._client = client
        self._sink = sink
        self.ready = ready
        self._adapters = adapters
        self._guides = guides
        self._guide_end_id = guide_end_id
        """The token at which vLLM ends guided outputs."""
        self._pooling = pooling
        self._images = images
        self._has_drafts = has_drafts
        self._running: dict[str, Running] = {}
        """Requests by vLLM's id. The code that removes a request reports its end, so only once."""
        self._statistics = Statistics(active=0, queued=0, cache_used=0.0)
        self._asleep: set[str] = set()
        """Parts of the memory that sleep."""
        self._is_asleep = False
        """True from when vLLM is told to sleep until it can work again."""
        self._has_weights = True
        """False from a sleep of level 2 until the weights are read again."""
        self._aborted: list[str] = []
        self._wake = threading.Condition()
        self._is_closed = False
        for name, target in (("vllm-outputs", self._receive), ("vllm-aborts", self._complete_aborts)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def submit(self, request: Submit) -> None:
        try:
            check_limits(request, self._guide_end_id, has_drafts=self._has_drafts)
            if request.lora_name:
                with self._adapters.lock:
                    message = self._open(request, self._adapters.find(request.lora_name))
            else:
                message = self._open(request, None)
        except CodedError as error:
            self._sink.failed(request.request_id, error)
            return
        if request.images:
            assert self._images is not None, "the engine server rejects images that Ready does not list"
            is_wanted = partial(self._is_wanted, message.request_id)
            self._images.submit(
                request.images, message, partial(self._add_with_images, message, request.guide), is_wanted
            )
        elif request.guide is None:
            self._add(message)
        else:
            self._compile(message, request.guide)

    def _open(self, request: Submit, lora: LoRARequest | None) -> EngineCoreRequest:
        """Make the core's request, which counts as running from now on."""
        message = core_request(request, lora, self._guide_end_id, self._pooling)
        self._running[message.request_id] = Running(request, self._guide_end_id, lora)
        return message

    def _compile(self, message: EngineCoreRequest, guide: Guide) -> None:
        assert self._guides is not None, "the engine server rejects guides that Ready does not list"
        is_wanted = partial(self._is_wanted, message.request_id)
        self._guides.submit(guide, partial(self._add_guided, message, guide), is_wanted)

    def _add_with_images(
        self, message: EngineCoreRequest, guide: Guide | None, error: CodedError | None
    ) -> None:
        """Add the request whose images are prepared; if it has a guide, once this is compiled."""
        request = self._running.get(message.request_id)
        if error is not None:
            self._fail(message.request_id, error)
        elif request is not None:
            request.prompt_tokens = (len(message.prompt_token_ids),)
            if guide is None:
                self._add_late(message)
            else:
                self._compile(message, guide)

    def _add_guided(
        self, message: EngineCoreRequest, guide: Guide, answer: Follower | CodedError | None
    ) -> None:
        """Add the request. NOTE: vLLM compiles its guide again; an error there ends the request (E2204)."""
        if isinstance(answer, CodedError):
            self._fail(message.request_id, answer)
        elif answer is not None:
            message.sampling_params.structured_outputs = structured_outputs(guide, answer.grammar)
            self._add_late(message)

    def _add_late(self, message: EngineCoreRequest) -> None:
        """Add a request that was prepared in a thread, unless it was aborted."""
        key = message.request_id
        if self._is_wanted(key):
            self._add(message)
            if not self._is_wanted(key):
                self._client.abort_requests([key])  # It was aborted before vLLM received it.

    def _is_wanted(self, key: str) -> bool:
        request = self._running.get(key)
        return request is not None and request.aborted_for is None

    def _add(self, message: EngineCoreRequest) -> None:
        try:
            self._client.add_request(message)
            if self._is_asleep:  # vLLM keeps a request that comes after the order to sleep.
                self._client.abort_requests([message.request_id])
                self._fail(message.request_id, EngineAsleep())
        # vLLM's EngineDeadError, or an error of its socket; also below.
        except Exception as exc:  # noqa: BLE001
            self._fail(message.request_id, self._died(exc))

    def cancel(self, request_id: int) -> None:
        self._abort(str(request_id), "cancelled")

    def statistics(self) -> Statistics:
        running, waiting = self._adapters.by_state(self._running.values())
        return msgspec.structs.replace(self._statistics, running_adapters=running, waiting_adapters=waiting)

    def close(self) -> None:
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        self._client.shutdown(timeout=0)

    # Orders

    def load_adapter(self, order: LoadAdapter) -> dict[str, str]:
        with self._client.order(f"load the LoRA adapter {order.name}"):
            return self._adapters.load(order, self._client, self._running.values())

    def unload_adapter(self, name: str) -> dict[str, str]:
        with self._client.order(f"unload the LoRA adapter {name}"):
            return self._adapters.unload(name, self._client, self._running.values())

    def sleep(self, order: Sleep) -> None:
        if self._asleep:
            return
        # NOTE: vLLM's own "wait" leaves requests that have not begun until it wakes, perhaps without weights.
        while order.mode == "wait" and self._running:
            time.sleep(_WAIT_POLL_S)
        self._is_asleep = True
        try:
            with self._client.order("sleep"):
                self._client.sleep(order.level, "abort")
        except CodedError:
            self._is_asleep = False
            with suppress(Exception):  # It does not sleep, but may take no requests.
                self._client.wake_up()
            raise
        self._asleep, self._has_weights = set(_MEMORY_TAGS), order.level < 2

    def wake_up(self, tags: list[str]) -> bool:
        with self._client.order("wake"):
            for tag in _MEMORY_TAGS:
                if tag in self._asleep and (not tags or tag in tags):
                    self._client.wake_up([tag])
                    self._asleep.remove(tag)
                if "weights" not in self._asleep and not self._has_weights:
                    # NOTE: this drops all adapters.
                    self._client.collective_rpc("reload_weights")
                    adapters = self._adapters.load_again(self._client)
                    self._has_weights = True
                    self.ready = msgspec.structs.replace(self.ready, adapters=adapters)
        self._is_asleep = bool(self._asleep)
        return not self._is_asleep

    # Results of vLLM

    def _receive(self) -> None:
        try:
            while True:
                self._take(self._client.get_output())
        except Exception as exc:  # noqa: BLE001
            if not self._is_closed:
                self._sink.broken(self._died(exc))

    def _take(self, outputs: EngineCoreOutputs) -> None:
        """Report one step: all its tokens in one call, then the ends."""
        new: list[tuple[int, list[int]]] = []
        log_probs: list[tuple[int, list[TokenLogProb]]] = []
        cached: list[tuple[int, ...]] = []
        ended: list[EngineCoreOutput] = []
        for output in outputs.outputs:
            request = self._running.get(output.request_id)
            if request is None or request.aborted_for is not None:
                continue
            tokens, is_stopped = request.take(output.new_token_ids)
            if output.prefill_stats is not None:  # In the first output alone.
                request.has_begun = True
                cached.append(
                    (request.request_id, output.prefill_stats.num_cached_tokens, *request.prompt_tokens)
                )
            if tokens:
                new.append((request.request_id, tokens))
                if output.new_logprobs is not None:
                    counts = len(tokens), request.num_top_log_probs
                    log_probs.append((request.request_id, token_log_probs(output.new_logprobs, *counts)))
            if is_stopped:
                self._abort(output.request_id, "stop")
            elif output.finish_reason is not None:
                ended.append(output)
        if cached:
            self._sink.cached(cached)
        if log_probs:
            self._sink.log_probs(log_probs)
        if new:
            self._sink.tokens(new)
        for output in ended:
            self._end(output)
        if outputs.scheduler_stats is not None:
            stats = outputs.scheduler_stats
            self._statistics = Statistics(
                active=stats.num_running_reqs,
                queued=stats.num_waiting_reqs,
                cache_used=stats.kv_cache_usage,
            )

    def _end(self, output: EngineCoreOutput) -> None:
        """Report a request that vLLM has ended, and whose resources it has freed."""
        request = self._running.get(output.request_id)
        reason = None if request is None else request.reason(output)
        if output.pooling_output is not None:
            embedding = np.asarray(output.pooling_output.float(), "<f4")
            self._finish(output.request_id, "end", embedding.tobytes())
        elif output.finish_reason is CoreFinishReason.ABORT:  # What we abort is not here any more.
            # NOTE: if a replica dies, vLLM ends the others, which abort their requests as a sleep does.
            error = EngineAsleep() if self._is_asleep else VllmEngineDied(reason=KILLED)
            self._fail(output.request_id, error)
        elif reason is None:
            self._fail(output.request_id, failure(output))
        else:
            self._finish(output.request_id, reason, drafted=drafted_tokens(output))

    # Cancelled requests, and stop words

    def _abort(self, key: str, reason: FinishReason) -> None:
        request = self._running.get(key)
        if request is None or request.aborted_for is not None:
            return
        request.aborted_for = reason
        with self._wake:
            self._aborted.append(key)
            self._wake.notify()

    def _complete_aborts(self) -> None:
        """Abort requests in vLLM, wait until it has processed that, then report the ends."""
        while True:
            with self._wake:
                while not self._aborted and not self._is_closed:
                    self._wake.wait()
                keys, self._aborted = self._aborted, []
            if self._is_closed:
                return
            try:
                self._client.abort_requests(keys)
                self._client.wait_until_processed()
            except Exception as exc:  # noqa: BLE001
                if not self._is_closed:
                    self._sink.broken(self._died(exc))
                return
            for key in keys:
                request = self._running.get(key)
                if request is not None and request.aborted_for is not None:
                    self._finish(key, request.aborted_for)

    def _died(self, error: Exception) -> VllmEngineDied:
        return VllmEngineDied(reason=self._client.death_reason(error))

    def _finish(
        self,
        key: str,
        reason: FinishReason,
        embedding: bytes | None = None,
        drafted: tuple[int, int] | None = None,
    ) -> None:
        request = self._forget(key)
        if request is not None:
            self._sink.finished(request.request_id, reason, None, embedding, drafted)

    def _fail(self, key: str, error: CodedError) -> None:
        request = self._forget(key)
        if request is not None:
            self._sink.failed(request.request_id, error)

    def _forget(self, key: str) -> Running | None:
        if self._images is not None:
            self._images.ended(key)
        return self._running.pop(key, None)
