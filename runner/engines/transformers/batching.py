"""Continuous batching of one model by transformers, with parts of the library's manager replaced by ours.

NOTE: ``ContinuousBatchingManager`` has no arguments for these. Its attributes ``output_router``,
``background_thread_status`` and ``logit_processor`` are replaced before the loop starts. The scheduler is
found by name in ``SCHEDULER_MAPPING``, and on a GPU the runner, on a CPU the cache, by its class name in the
library's module.
tests/runner/engines/transformers/test_library.py fails if this changes.
"""

from functools import partial

from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from errors.engines import EngineCrashed
from runner.engines.protocol.adapter import Sink
from runner.engines.sequence import Sequence
from runner.engines.transformers.cache import GrowingCache
from runner.engines.transformers.library_parts import ChoosingRunner, Router, Scheduler, Status
from runner.engines.transformers.running import RunningSequences
from runner.engines.transformers.sampling import SamplingProcessor
from runner.engines.transformers.settings import ENGINE_KIND

_NO_END_ID = -1


def needs_chosen_after(model: PreTrainedModel) -> bool:
    """Return True if tokens are chosen after the library's step (``ChoosingRunner``): CUDA graphs."""
    return bool(model.device.type != "cpu")


class Batching:
    """Continuous batching of one model. The loop runs in a thread of the library."""

    def __init__(self, model: PreTrainedModel, config: ContinuousBatchingConfig, sink: Sink) -> None:
        self.running = RunningSequences(sink)
        # Replace the model's own configuration, which may sample, penalize, or end at its own token.
        generation_config = GenerationConfig(do_sample=False, eos_token_id=_NO_END_ID)
        scheduler = config.scheduler_type = f"cog_triton_{id(self)}"
        manager = model.init_continuous_batching(
            generation_config=generation_config, continuous_batching_config=config
        )
        manager.output_router = Router(self.running, manager)
        manager.background_thread_status = self._status = Status(sink)
        is_deferred = needs_chosen_after(model)
        sampler = SamplingProcessor(self.running, is_deferred=is_deferred)
        processors = LogitsProcessorList([sampler])
        manager.logit_processor = ContinuousBatchingLogitsProcessorList(processors)
        # One row for the result of ``prepare_tensor_args``: the library counts only its own processors.
        manager.logit_processor.tensors_required = 1
        SCHEDULER_MAPPING[scheduler] = partial(Scheduler, self.running)
        library_cache, library_runner = continuous_api.PagedAttentionCache, continuous_api.ModelRunner
        if model.device.type == "cpu":
            continuous_api.PagedAttentionCache = GrowingCache
        if is_deferred:
            continuous_api.ModelRunner = partial(ChoosingRunner, sampler)
        try:
            # This makes cache, scheduler and CUDA graphs, so that errors occur here.
            manager.warmup()
        finally:
            continuous_api.PagedAttentionCache, continuous_api.ModelRunner = library_cache, library_runner
            del SCHEDULER_MAPPING[scheduler]
        self._manager = manager
        self._processor = manager.batch_processor

    @property
    def max_sequence_tokens(self) -> int:
        """Return the length of the longest sequence that fits the cache by itself."""
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
        scheduler = self._processor.scheduler
        queued = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        return len(scheduler.active_requests), queued

    def cache_used(self) -> float:
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
