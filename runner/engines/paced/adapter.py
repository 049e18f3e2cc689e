"""The ``paced`` engine: tokens at a fixed rate without a model, for load measurements.

Its output repeats the prompt's token ids, so that the content of each stream is known in advance and a lost
or misplaced token is detected. ``paced.json`` in the engine directory is ``{"tokens_per_second": 100.0}``; 0
means 32 tokens of each stream every millisecond, more than any later step can process. ``faults`` are
injected on request; a ``script`` determines the output instead of the prompt. Where KV events are published,
a prefix cache is simulated.
"""

import heapq
import itertools
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from errors.engines import EngineFailed
from errors.settings import InvalidSetting
from runner.engines.paced.faults import VARIABLE, Faults, inject_fault, parse_faults
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    ALL_GUIDE_TYPES,
    FinishReason,
    Ready,
    Statistics,
    Submit,
    TokenLogProb,
)
from runner.engines.protocol.options import KV_EVENTS_OPTION

if TYPE_CHECKING:  # It imports the tokenizer's library.
    from runner.engines.paced.prefix_cache import PublishedCache
    from runner.engines.paced.script import Script, ScriptedAnswer

SCRIPT_VARIABLE = "COG_TRITON_SCRIPT"
_SHORTEST_STEP_S = 0.001
_UNPACED_STEP_TOKENS = 32
"""Tokens per sequence and step, as with speculative decoding: the engine itself must cost little."""


class _Sequence:
    reason: FinishReason = "length"
    pause_s = 0.0
    """Pause before the next tokens, beside the rate's."""

    def __init__(self, request: Submit, due_s: float, fault: str | None) -> None:
        self.request_id = request.request_id
        self.ids = itertools.cycle(request.input_ids)
        self.rest_tokens = request.max_tokens
        self.num_top_log_probs = request.num_top_log_probs if request.wants_log_probs else None
        self.due_s = due_s
        self.fault = fault
        self.output_tokens = 0

    def take(self, count: int) -> list[int]:
        """Return the next tokens, at most ``count``."""
        tokens = list(itertools.islice(self.ids, min(count, self.rest_tokens)))
        self.rest_tokens -= len(tokens)
        self.output_tokens += len(tokens)
        return tokens


class _ScriptedSequence(_Sequence):
    def __init__(self, request: Submit, due_s: float, fault: str | None, answer: "ScriptedAnswer") -> None:
        super().__init__(request, due_s + answer.pause_s, fault)
        self._answer = answer
        self.reason = answer.reason

    def take(self, count: int) -> list[int]:
        tokens = self._answer.take()
        self.output_tokens += len(tokens)
        self.pause_s = self._answer.pause_s
        self.rest_tokens = int(bool(self._answer))
        return tokens


class PacedEngine:
    """An engine that emits ``tokens_per_second`` tokens a second for each request."""

    def __init__(
        self,
        sink: Sink,
        ready: Ready,
        tokens_per_second: float,
        faults: Faults,
        script: "Script | None" = None,
        cache: "PublishedCache | None" = None,
    ) -> None:
        self._cache = cache
        self._faults = faults
        self._script = script
        self._request_count = 0
        self._sink = sink
        self.ready = ready
        self._interval_s = 1 / tokens_per_second if tokens_per_second else 0.0
        if script is not None:  # Its pauses need times.
            self._interval_s = self._interval_s or _SHORTEST_STEP_S
        self._step_tokens = 1 if tokens_per_second else _UNPACED_STEP_TOKENS
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, _Sequence]] = []
        """A heap by time, if paced. Cancelled sequences stay in it until they are due."""
        self._running: dict[int, _Sequence] = {}
        self._closed = False
        threading.Thread(target=self._run, name="paced-engine", daemon=True).start()

    def submit(self, request: Submit) -> None:
        answer = None if self._script is None else self._script.answer(request)
        with self._wake:
            self._request_count += 1
            fault = self._faults.of(request, self._request_count)
            due_s = time.perf_counter() + self._interval_s
            if answer is None:
                sequence = _Sequence(request, due_s, fault)
            else:
                sequence = _ScriptedSequence(request, due_s, fault, answer)
            self._running[request.request_id] = sequence
            if self._cache is not None:
                self._sink.cached([(request.request_id, self._cache.take(request.input_ids))])
            if self._interval_s:
                self._queue(sequence)
            self._wake.notify()

    def cancel(self, request_id: int) -> None:
        with self._wake:
            if self._running.pop(request_id, None) is None:
                return
        self._sink.finished(request_id, "cancelled")

    def statistics(self) -> Statistics:
        return Statistics(active=len(self._running), queued=0)

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._closed:
                    return
                wait_s = self._wait_s()
                if wait_s is None or wait_s > 0:
                    self._wake.wait(wait_s)
                    continue
                self._step()
            time.sleep(_SHORTEST_STEP_S)  # What becomes due meanwhile is one step, as in any engine.

    def _wait_s(self) -> float | None:
        """Return the time until the next token; None without running requests."""
        if not self._interval_s:
            return 0.0 if self._running else None
        return self._due[0][0] - time.perf_counter() if self._due else None

    def _step(self) -> None:
        """Emit the next tokens of every sequence that is due. Called with the lock held."""
        due = self._take_due() if self._interval_s else list(self._running.values())
        faulty = [sequence for sequence in due if sequence.fault]
        if faulty:
            due = [sequence for sequence in due if not sequence.fault]
        new = [(sequence.request_id, sequence.take(self._step_tokens)) for sequence in due]
        if log_probs := _log_probs(due, new):
            self._sink.log_probs(log_probs)
        self._sink.tokens(new)
        due += [sequence for sequence in faulty if self._step_faulty(sequence)]
        for sequence in due:
            if not sequence.rest_tokens:
                del self._running[sequence.request_id]
                self._sink.finished(sequence.request_id, sequence.reason)
            elif self._interval_s:
                sequence.due_s += self._interval_s + sequence.pause_s
                self._queue(sequence)

    def _step_faulty(self, sequence: _Sequence) -> bool:
        """Make the step of a sequence with a fault. Return False if it has ended."""
        assert sequence.fault is not None
        before = sequence.output_tokens
        tokens = sequence.take(self._step_tokens)
        try:
            tokens = inject_fault(sequence.fault, before, tokens, self.ready.vocab_size)
        except EngineFailed as exc:
            del self._running[sequence.request_id]
            self._sink.failed(sequence.request_id, exc)
            return False
        if tokens:
            self._sink.tokens([(sequence.request_id, tokens)])
        else:
            sequence.rest_tokens += self._step_tokens  # A stalled sequence never ends.
        return True

    def _take_due(self) -> list[_Sequence]:
        now_s = time.perf_counter()
        due = []
        while self._due and self._due[0][0] <= now_s:
            sequence = heapq.heappop(self._due)[2]
            if sequence.request_id in self._running:
                due.append(sequence)
        return due

    def _queue(self, sequence: _Sequence) -> None:
        heapq.heappush(self._due, (sequence.due_s, sequence.request_id, sequence))


def _log_probs(
    sequences: list[_Sequence], new: list[tuple[int, list[int]]]
) -> list[tuple[int, list[TokenLogProb]]]:
    """Return log probabilities: each token has a probability of 1."""
    return [
        (request_id, [TokenLogProb(0.0, [(token, 0.0)][: sequence.num_top_log_probs]) for token in tokens])
        for sequence, (request_id, tokens) in zip(sequences, new, strict=True)
        if sequence.num_top_log_probs is not None
    ]


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> PacedEngine:
    """Read ``paced.json``; the option ``tokens_per_second`` overrides its rate."""
    config = json.loads((engine_dir / "config.json").read_text())
    rate = json.loads((engine_dir / "paced.json").read_text())["tokens_per_second"]
    tokens_per_second = _rate(options.get("tokens_per_second") or rate)
    script = None
    if value := os.environ.get(SCRIPT_VARIABLE):
        from runner.engines.paced.script import Script

        step_tokens = 1 if tokens_per_second else _UNPACED_STEP_TOKENS
        script = Script(value, engine_dir / "tokenizer.json", config["vocab_size"], step_tokens)
    cache = None
    if text := options.get(KV_EVENTS_OPTION):
        from runner.engines.paced.prefix_cache import PublishedCache

        cache = PublishedCache(json.loads(text))
    ready = Ready(
        engine_kind="paced",
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_position_embeddings"],
        max_batch_size=int(options.get("max_batch_size") or 1 << 16),
        # Its author makes the answer follow them.
        guide_types=() if script is None else ALL_GUIDE_TYPES,
        kv_block_tokens=0 if cache is None else cache.block_tokens,
        num_kv_blocks=0 if cache is None else cache.num_blocks,
    )
    faults = parse_faults(os.environ.get(VARIABLE, ""))
    time.sleep(faults.slow_start_s)
    return PacedEngine(sink, ready, tokens_per_second, faults, script, cache)


def _rate(value: object) -> float:
    try:
        rate = float(str(value))
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise InvalidSetting(name="tokens_per_second", expected="a number of at least 0", value=value)
    return rate
