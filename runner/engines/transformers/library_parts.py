"""Parts of transformers' continuous batching that we replace: router, scheduler, status, model runner.

With them nothing polls: tokens, ends and failures are reported from the loop's thread in the step that made
them, and a request is reported as finished after its cache blocks are free.
"""

from typing import Any

import torch
from torch import nn
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchingManager,
    OutputRouter,
)
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.continuous_batching.requests import (
    GenerationOutput,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import FIFOScheduler
from transformers.generation.continuous_batching.utils import stream_context

from runner.engines.protocol.adapter import Sink
from runner.engines.transformers.running import RunningSequences
from runner.engines.transformers.sampling import SamplingProcessor


class Router(OutputRouter):  # type: ignore[misc]
    """A router that takes all results of a step together, in the loop's thread."""

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
        # A stopping loop fails all remaining requests. ``Status`` reports these, unless we closed the
        # engine.
        if self._manager.background_thread_status.can_accept_new_requests() is None:
            self._running.fail(state.request_id, error)


class Scheduler(FIFOScheduler):  # type: ignore[misc]
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


class Status(BackgroundThreadStatus):  # type: ignore[misc]
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


class ChoosingRunner(ModelRunner):  # type: ignore[misc]
    """A model runner that chooses tokens after its step: a CUDA graph can't depend on requests.

    The graph consists of the forward pass and the argmax, which is the token of a plain greedy request. If
    requests of a step sample, penalize or forbid tokens, their tokens are chosen here from the scores of the
    graph. ``sampler`` must not change the scores itself (``is_deferred``).
    """

    def __init__(self, sampler: SamplingProcessor, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sampler = sampler
        self._graph_scores: dict[tuple[int, ...], torch.Tensor] = {}

    def compute_batch(self, model: nn.Module, batch_data: dict[str, Any]) -> None:
        self._sampler.seen.clear()
        super().compute_batch(model, batch_data)
        io = self.inputs_and_outputs
        seen = self._sampler.seen
        # NOTE: capturing a graph runs the step twice: once for its result, and once to record it, which
        # computes nothing. Each replay fills the tensors of the second run.
        if len(seen) == 2:
            self._graph_scores[io._get_graph_key()] = seen[1]
        count = self._sampler.count
        if not count or not self._sampler.is_choosing():
            return
        scores = seen[0] if seen else self._graph_scores[io._get_graph_key()]
        with stream_context(io.compute_stream):
            chosen = self._sampler.choose(scores[:count]).argmax(dim=-1)
            io.get_cb_kwargs()[2][0, :count].copy_(chosen)
