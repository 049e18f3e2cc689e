"""Continuous batching of a model by llama.cpp, in a thread: admit, compute a step, sample, report.

Each running request has a slot, a sequence of llama.cpp's KV cache. There are more slots than requests: free
ones keep the tokens of finished requests, whose beginnings later requests share. If the cache is full, the
oldest of these are removed, and then the request that began last waits and is computed again later.
"""

import heapq
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from errors.engines import EngineCrashed
from runner.engines.batched_engine import report_end, report_step
from runner.engines.llama_cpp.library import ENGINE_KIND
from runner.engines.llama_cpp.model import Model, Part, Scores
from runner.engines.llama_cpp.sampling import Sampler
from runner.engines.protocol.adapter import Sink
from runner.engines.sequence import Sequence


class _Entry(NamedTuple):
    """A request in the order in which requests begin. No two have the same number."""

    priority: int
    number: int
    sequence: Sequence


@dataclass(eq=False)
class _Slot:
    number: int
    tokens: list[int] = field(default_factory=list)
    """The tokens of its request, or of its last one; the first ``num_computed`` are in the cache."""
    num_computed: int = 0
    num_shared: int = 0
    """Number of tokens that it took from another slot."""
    entry: _Entry | None = None
    used_at: int = 0
    """Step that last used it."""


class Batching:
    """The requests of one model. See ``runner.engines.batched_engine.Batch``."""

    def __init__(self, model: Model, max_batch_size: int, sink: Sink) -> None:
        self._model = model
        self._max_batch_size = max_batch_size
        self._sink = sink
        self._sampler = Sampler()
        self._slots = [_Slot(number) for number in range(model.num_sequences)]
        self._waiting: list[_Entry] = []
        """A heap."""
        self._sequences: dict[int, Sequence] = {}
        self._numbers = itertools.count()
        self._steps = itertools.count(1)
        self._is_full = False
        """True from the time when a request had to leave the cache until another one ends."""
        self._is_closed = False
        self._changed = threading.Condition()
        """Guards ``_waiting``, ``_sequences`` and ``_is_closed``."""
        self._thread = threading.Thread(target=self._run, name="llama_cpp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        request = sequence.request
        with self._changed:
            if not (is_closed := self._is_closed):
                self._sequences[request.request_id] = sequence
                heapq.heappush(self._waiting, _Entry(request.priority, next(self._numbers), sequence))
                self._changed.notify()
        if is_closed:
            error = EngineCrashed(engine_kind=ENGINE_KIND, reason="it is stopping")
            self._sink.failed(request.request_id, error)

    def cancel(self, request_id: int) -> None:
        with self._changed:
            if sequence := self._sequences.get(request_id):
                sequence.is_cancelled = True

    def counts(self) -> tuple[int, int]:
        return len(self._running()), len(self._waiting)

    def cache_used(self) -> float:
        used = sum(slot.num_computed - slot.num_shared for slot in self._running())
        return min(max(used / self._model.num_cells, 0.0), 1.0)

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while self._wait():
                self._end_cancelled()
                self._admit()
                self._step()
            self._model.close()
        except Exception as error:  # noqa: BLE001 - whatever the library raises ends this engine
            with self._changed:
                self._is_closed = True
            self._sink.broken(error)

    def _wait(self) -> bool:
        """Wait until there is a request. Return False if the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._sequences)
            return not self._is_closed

    def _running(self) -> list[_Slot]:
        """Return the slots that have a request, in the order in which requests begin."""
        return sorted((slot for slot in self._slots if slot.entry), key=lambda slot: slot.entry or ())

    def _end_cancelled(self) -> None:
        with self._changed:
            cancelled = [entry.sequence for entry in self._waiting if entry.sequence.is_cancelled]
            if cancelled:
                self._waiting = [entry for entry in self._waiting if not entry.sequence.is_cancelled]
                heapq.heapify(self._waiting)
        for sequence in cancelled:
            self._report_end(sequence)
        for slot in self._running():
            if slot.entry and slot.entry.sequence.is_cancelled:
                self._end(slot)

    def _end(self, slot: _Slot) -> None:
        """End the request of ``slot``, which keeps its tokens for others."""
        assert slot.entry is not None
        sequence, slot.entry = slot.entry.sequence, None
        slot.num_shared = 0
        self._is_full = False
        if not self._model.can_share_prefixes:
            self._keep(slot, 0)
        self._report_end(sequence)

    def _report_end(self, sequence: Sequence) -> None:
        with self._changed:
            del self._sequences[sequence.request.request_id]
        report_end(self._sink, sequence)

    def _admit(self) -> None:
        """Begin waiting requests, as far as slots and the cache allow."""
        while True:
            running = self._running()
            with self._changed:
                if not self._waiting or len(running) >= self._max_batch_size:
                    return
                claimed = sum(len(slot.tokens) - slot.num_shared for slot in running)
                has_room = claimed + len(self._waiting[0].sequence.tokens) < self._model.num_cells
                if running and (self._is_full or not has_room):
                    return
                entry = heapq.heappop(self._waiting)
                self._begin(entry)

    def _begin(self, entry: _Entry) -> None:
        """Give a request a slot, with the longest beginning of its tokens that any slot has."""
        tokens = entry.sequence.tokens
        free = [slot for slot in self._slots if slot.entry is None]
        slot = min(free, key=lambda each: each.used_at)
        # The scores of the last token are needed, so it is computed in any case.
        limit = len(tokens) - 1 if self._model.can_share_prefixes else 0
        shared, source = max(
            ((_num_common(each.tokens, tokens, min(each.num_computed, limit)), each) for each in self._slots),
            key=lambda pair: pair[0],
        )
        if source in free and shared == source.num_computed:
            slot = source
        if slot is source:
            self._keep(slot, shared)
        else:
            self._keep(slot, 0)
            if shared:
                self._model.share(source.number, slot.number, shared)
                slot.num_computed = shared
            slot.num_shared = shared if source.entry else 0
        slot.tokens, slot.entry = tokens, entry
        if not entry.sequence.num_generated:
            entry.sequence.cached_tokens = shared

    def _keep(self, slot: _Slot, num_tokens: int) -> None:
        """Keep the first tokens of ``slot`` in the cache, and remove the others."""
        if num_tokens < slot.num_computed:
            self._model.keep(slot.number, num_tokens)
            slot.num_computed = num_tokens

    def _step(self) -> None:
        """Compute, sample and report the next tokens, or a part of the prompts."""
        chosen, scores = self._compute()
        step = next(self._steps)
        stepped = []
        for slot, part in chosen:
            slot.num_computed += len(part.tokens)
            slot.used_at = step
        wanting = [slot.entry.sequence for slot, part in chosen if part.wants_scores and slot.entry]
        for sequence, row in zip(wanting, scores, strict=True):
            stepped.append((sequence, self._sampler.choose(row, sequence)))
        if stepped:
            report_step(self._sink, stepped)
        for slot, _ in chosen:
            if slot.entry and (slot.entry.sequence.finish_reason or slot.entry.sequence.error):
                self._end(slot)

    def _compute(self) -> tuple[list[tuple[_Slot, Part]], Scores]:
        """Compute a step, for which room is made if the cache is full."""
        while chosen := list(self._parts()):
            scores = self._model.compute([part for _, part in chosen])
            if scores is not None:
                return chosen, scores
            self._make_room()
        return [], np.empty((0, 0), np.float32)

    def _parts(self) -> Iterator[tuple[_Slot, Part]]:
        """Yield what the next step computes: new tokens first, then as much of the prompts as fits."""
        left = self._model.step_tokens
        running = self._running()
        for slot in sorted(running, key=lambda each: len(each.tokens) - each.num_computed > 1):
            tokens = slot.tokens[slot.num_computed : slot.num_computed + left]
            if tokens:
                left -= len(tokens)
                is_last = slot.num_computed + len(tokens) == len(slot.tokens)
                yield slot, Part(slot.number, slot.num_computed, tokens, is_last)

    def _make_room(self) -> None:
        """Remove the oldest finished request from the cache; without one, let the last that began wait."""
        finished = [slot for slot in self._slots if slot.entry is None and slot.num_computed]
        if finished:
            self._keep(min(finished, key=lambda slot: slot.used_at), 0)
            return
        slot = self._running()[-1]
        assert slot.entry is not None
        self._keep(slot, 0)
        with self._changed:
            heapq.heappush(self._waiting, slot.entry)
        slot.entry, slot.num_shared = None, 0
        self._is_full = True


def _num_common(left: list[int], right: list[int], limit: int) -> int:
    """Return how many of the first ``limit`` tokens are equal."""
    low, high = 0, min(len(left), len(right), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
