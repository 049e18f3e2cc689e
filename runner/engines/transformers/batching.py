"""Adapter of transformers' continuous batching: the results of its loop become calls of the sink.

Our own result router, scheduler, status and logits processor replace those of the library's manager, so that
nothing polls: tokens, ends and failures are reported from the loop's thread in the step that made them, and a
request is reported as finished after its cache blocks are free.

NOTE: ``ContinuousBatchingManager`` has no arguments for these. Its attributes ``output_router``,
``background_thread_status`` and ``logit_processor`` are replaced before the loop starts. The scheduler is
found by name in ``SCHEDULER_MAPPING``, and on a GPU the runner by its class name in the library's module.
tests/runner/engines/transformers/test_library.py fails if this changes.
"""

from functools import partial

from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchingManager,
    OutputRouter,
)
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import (
    GenerationOutput,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from runner.engines.protocol.adapter import Sink
from runner.engines.transformers.model_runner import ChoosingRunner
from runner.engines.transformers.sampling import SamplingProcessor
from runner.engines.transformers.sequence import Sequence

ENGINE_KIND = "transformers"
LIBRARY_LOGGER = "ContinuousBatchingLogger"
_NO_END_ID = -1


class RunningSequences(dict[str, Sequence]):
    """The sequences between their submission and their end, by the library's request id.

    ``add`` is called by the submitting thread, everything else by the loop's thread. The caller that removes
    a sequence reports its end, so that it is reported once.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink

    def add(self, sequence: Sequence) -> str:
        key = str(sequence.request.request_id)
        self[key] = sequence
        return key

    def deliver(self, outputs: list[GenerationOutput]) -> list[str]:
        """Report one step. Returns the ids of ended sequences that the library would continue."""
        stepped = [(output, self[output.request_id]) for output in outputs]
        for output, sequence in stepped:
            _append(sequence, output.generated_tokens[-1])
        if first := [each for _, each in stepped if each.num_generated == 1]:
            self._sink.cached([(each.request.request_id, each.cached_tokens) for each in first])
        sound = [sequence for _, sequence in stepped if sequence.error is None]
        wanting = [sequence for sequence in sound if sequence.log_probs]
        if wanting:
            # Each has the value of the token that is delivered now.
            self._sink.log_probs([(each.request.request_id, [each.log_probs.pop(0)]) for each in wanting])
        self._sink.tokens([(each.request.request_id, each.tokens[-1:]) for each in sound])
        unfinished = []
        for output, sequence in stepped:
            if output.is_finished():
                self.end(output.request_id)
            elif sequence.finish_reason or sequence.error:
                unfinished.append(output.request_id)
        return unfinished

    def end(self, key: str) -> None:
        """Report the end of a sequence whose resources are free."""
        sequence = self.pop(key, None)
        if sequence and sequence.error:
            self._sink.failed(sequence.request.request_id, sequence.error)
        elif sequence:
            self._sink.finished(sequence.request.request_id, sequence.finish_reason or "cancelled")

    def fail(self, key: str, error: Exception) -> None:
        sequence = self.pop(key, None)
        if sequence:
            self._sink.failed(sequence.request.request_id, error)


def _append(sequence: Sequence, token: int) -> None:
    try:
        if sequence.error is None:
            sequence.append(token)
    except CodedError as error:
        sequence.error = error


class _Router(OutputRouter):  # type: ignore[misc]
    """Takes all results of a step together, in the loop's thread."""

    def __init__(self, running: RunningSequences, manager: ContinuousBatchingManager) -> None:
        super().__init__()
        self._running = running
        self._manager = manager

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        for key in self._running.deliver(outputs):
            # The library supports single tokens that end generation, not sequences of tokens. A request that
            # is cancelled here is removed before the next step is prepared.
            self._manager.cancel_request(key)

    def fail_and_deliver(self, state: RequestState, error: Exception) -> None:
        # A stopping loop fails all remaining requests. ``_Status`` reports these, unless we closed the
        # engine.
        if self._manager.background_thread_status.can_accept_new_requests() is None:
            self._running.fail(state.request_id, error)


class _Scheduler(FIFOScheduler):  # type: ignore[misc]
    """The library's scheduler, which also reports when a cancelled request is removed."""

    def __init__(self, running: RunningSequences, **settings: object) -> None:
        super().__init__(**settings)
        self._running = running
        self._has_priorities = False

    def add_waiting_request(self, state: RequestState) -> None:
        sequence = self._running.get(state.request_id)
        # NOTE: the library processes submissions before cancellations. A request that is submitted and
        # cancelled between the two would lose its cancellation.
        if sequence is None or sequence.is_cancelled:
            self._running.end(state.request_id)
        else:
            self._has_priorities = self._has_priorities or bool(sequence.request.priority)
            super().add_waiting_request(state)

    def _get_waiting_candidates(self) -> list[RequestState]:
        waiting: list[RequestState] = super()._get_waiting_candidates()
        if self._has_priorities:
            waiting.sort(key=self._priority)
        return waiting

    def _priority(self, state: RequestState) -> int:
        sequence = self._running.get(state.request_id)
        return 0 if sequence is None else sequence.request.priority

    def _infer_request_tokens(self, state: RequestState, started: set[str]) -> list[int]:
        is_new = state.status == RequestStatus.PENDING
        tokens: list[int] = super()._infer_request_tokens(state, started)
        # NOTE: after its first token a request that gave its cache back is new again.
        if is_new and (sequence := self._running.get(state.request_id)) and not sequence.num_generated:
            sequence.cached_tokens = state.position_offset
        return tokens

    def clear_cancelled_requests(self) -> list[RequestState]:
        states: list[RequestState] = super().clear_cancelled_requests()
        if states:
            # NOTE: when the cache is full, the library blocks new requests until a request finishes. It does
            # not unblock them when one is cancelled.
            self.block_new_requests = False
        for state in states:
            self._running.end(state.request_id)
        return states


class _Status(BackgroundThreadStatus):  # type: ignore[misc]
    """The loop's status, which reports an unexpected end of the loop once."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self.is_end_known = False

    def record_fatal_error(self, error: Exception) -> None:
        super().record_fatal_error(error)
        self._report(error)

    def mark_as_stopped(self) -> None:
        super().mark_as_stopped()
        self._report(RuntimeError("the generation loop ended"))

    def _report(self, error: Exception) -> None:
        if not self.is_end_known:
            self.is_end_known = True
            self._sink.broken(error)


def needs_chosen_after(model: PreTrainedModel) -> bool:
    """Whether tokens are chosen after the library's step (``ChoosingRunner``), because of CUDA graphs."""
    return bool(model.device.type != "cpu")


class Batching:
    """Continuous batching of one model. The loop runs in a thread of the library."""

    def __init__(self, model: PreTrainedModel, config: ContinuousBatchingConfig, sink: Sink) -> None:
        self.running = RunningSequences(sink)
        # Not the model's own configuration, which may sample, penalize, or end at its own token.
        generation_config = GenerationConfig(do_sample=False, eos_token_id=_NO_END_ID)
        scheduler = config.scheduler_type = f"cog_triton_{id(self)}"
        manager = model.init_continuous_batching(
            generation_config=generation_config, continuous_batching_config=config
        )
        manager.output_router = _Router(self.running, manager)
        manager.background_thread_status = self._status = _Status(sink)
        is_deferred = needs_chosen_after(model)
        sampler = SamplingProcessor(self.running, is_deferred=is_deferred)
        processors = LogitsProcessorList([sampler])
        manager.logit_processor = ContinuousBatchingLogitsProcessorList(processors)
        # One row for the result of ``prepare_tensor_args``: the library counts only its own processors.
        manager.logit_processor.tensors_required = 1
        SCHEDULER_MAPPING[scheduler] = partial(_Scheduler, self.running)
        library_runner = continuous_api.ModelRunner
        if is_deferred:
            continuous_api.ModelRunner = partial(ChoosingRunner, sampler)
        try:
            # This makes cache, scheduler and CUDA graphs, so that errors occur here.
            manager.warmup()
        finally:
            continuous_api.ModelRunner = library_runner
            del SCHEDULER_MAPPING[scheduler]
        self._manager = manager
        self._processor = manager.batch_processor

    @property
    def max_sequence_tokens(self) -> int:
        """The longest sequence that fits the cache by itself."""
        return int(infer_max_single_request_tokens(self._processor.cache))

    def start(self) -> None:
        self._manager.start()

    def submit(self, sequence: Sequence) -> None:
        request = sequence.request
        key = self.running.add(sequence)
        accepted = self._manager.add_request(
            request.input_ids,
            request_id=key,
            max_new_tokens=request.max_tokens,
            streaming=True,
            eos_token_id=_NO_END_ID if request.end_id is None else request.end_id,
        )
        if accepted is None:
            self.running.fail(key, EngineCrashed(engine_kind=ENGINE_KIND, reason="it is stopping"))

    def cancel(self, request_id: int) -> None:
        sequence = self.running.get(str(request_id))
        if sequence and not sequence.is_cancelled:
            sequence.is_cancelled = True
            self._manager.cancel_request(str(request_id))

    def counts(self) -> tuple[int, int]:
        """The number of active requests, which hold cache, and of waiting ones."""
        scheduler = self._processor.scheduler
        queued = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        return len(scheduler.active_requests), queued

    def cache_used(self) -> float:
        """The share of the cache, 0..1, that requests hold, without the prefixes of finished requests."""
        cache = self._processor.cache
        kept_bytes = sum(
            len(allocator.ledger.cached_blocks) * allocator.bytes_per_block
            for allocator in cache.cache_allocators.values()
        )
        total_bytes = cache.num_sectors * cache.bytes_per_sector
        used_bytes = total_bytes - kept_bytes - cache.compute_free_capacity(relative=False)
        # The loop runs while this is read.
        return float(min(max(used_bytes / total_bytes, 0.0), 1.0))

    def close(self, timeout_s: float) -> None:
        self._status.is_end_known = True
        self._manager.stop(block=True, timeout=timeout_s, hard_stop=True)
