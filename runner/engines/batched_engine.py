"""An engine whose loop works on a batch of sequences in this process, whatever library computes it."""

import threading
from functools import partial
from typing import Protocol

from errors.coded_error import CodedError
from runner.engines.guides.compile import GuideCompiler
from runner.engines.guides.follow import Follower
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import Ready, Statistics, Submit
from runner.engines.sequence import Sequence

_CLOSE_TIMEOUT_S = 30.0


class Batch(Protocol):
    """The sequences of one model, and the loop that computes them. Its methods return at once."""

    def submit(self, sequence: Sequence) -> None: ...
    def cancel(self, request_id: int) -> None: ...

    def counts(self) -> tuple[int, int]:
        """Return the number of active requests, which hold cache, and of waiting ones."""

    def cache_used(self) -> float:
        """Return the share of the cache, 0..1, that requests hold, without prefixes of finished ones."""

    def close(self, timeout_s: float) -> None:
        """Stop the loop."""


class BatchedEngine:
    """An engine that submits to ``batch``. See ``runner.engines.protocol.adapter.EngineAdapter``."""

    def __init__(self, batch: Batch, sink: Sink, ready: Ready, guides: GuideCompiler | None) -> None:
        self._batch = batch
        self._sink = sink
        self.ready = ready
        self._guides = guides
        self._compiling: set[int] = set()
        """Requests whose guide is being compiled."""
        self._lock = threading.Lock()

    def submit(self, request: Submit) -> None:
        if request.guide is None:
            self._batch.submit(Sequence(request))
        else:
            assert self._guides is not None, "the engine server rejects guides that Ready does not list"
            self._compiling.add(request.request_id)
            is_wanted = partial(self._compiling.__contains__, request.request_id)
            self._guides.submit(request.guide, partial(self._submit_guided, request), is_wanted)

    def _submit_guided(self, request: Submit, answer: Follower | CodedError | None) -> None:
        """Submit a request once its guide is compiled, or is invalid."""
        with self._lock:
            is_wanted = request.request_id in self._compiling
            self._compiling.discard(request.request_id)
            if is_wanted and isinstance(answer, Follower):
                self._batch.submit(Sequence(request, answer))
        if not is_wanted:
            self._sink.finished(request.request_id, "cancelled")
        elif isinstance(answer, CodedError):
            self._sink.failed(request.request_id, answer)

    def cancel(self, request_id: int) -> None:
        with self._lock:
            if request_id in self._compiling:
                self._compiling.discard(request_id)
                return
        self._batch.cancel(request_id)

    def statistics(self) -> Statistics:
        active, queued = self._batch.counts()
        queued += len(self._compiling)
        return Statistics(active=active, queued=queued, cache_used=self._batch.cache_used())

    def close(self) -> None:
        """Stop the loop. NOTE: the process does not exit without this, if the loop's thread is no daemon."""
        self._batch.close(_CLOSE_TIMEOUT_S)


def report_step(sink: Sink, stepped: list[tuple[Sequence, int]]) -> None:
    """Append the new token of each sequence, and report those of all that did not fail together."""
    for sequence, token in stepped:
        _append(sequence, token)
    sequences = [sequence for sequence, _ in stepped]
    if first := [each for each in sequences if each.num_generated == 1]:
        sink.cached([(each.request.request_id, each.cached_tokens) for each in first])
    sound = [sequence for sequence in sequences if sequence.error is None]
    if wanting := [sequence for sequence in sound if sequence.log_probs]:
        # Each sequence has the value of the token that is delivered now.
        sink.log_probs([(each.request.request_id, [each.log_probs.pop(0)]) for each in wanting])
    sink.tokens([(each.request.request_id, each.tokens[-1:]) for each in sound])


def report_end(sink: Sink, sequence: Sequence) -> None:
    """Report the end of a sequence that holds nothing any more."""
    if sequence.error:
        sink.failed(sequence.request.request_id, sequence.error)
    else:
        sink.finished(sequence.request.request_id, sequence.finish_reason or "cancelled")


def _append(sequence: Sequence, token: int) -> None:
    try:
        if sequence.error is None:
            sequence.append(token)
    except CodedError as error:
        sequence.error = error
