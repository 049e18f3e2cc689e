"""Tokens per second with and without structured output, on one transformers engine in this process.

Run it with the engine environment's Python. The kinds of requests take turns, so that all meet the same
load of the machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from perf.options import Options
from runner.engines.protocol.messages import FinishReason, Guide, Sampling, Submit, TokenLogProb
from runner.engines.transformers.adapter import TransformersEngine, load

_PROMPT = [5, 6, 7, 8]
_FREE = "free"
_GUIDES: dict[str, Guide | None] = {
    _FREE: None,
    "regex": Guide("regex", "([a-z]{1,8} )*"),
    "json_schema": Guide(
        "json_schema",
        json.dumps({"type": "array", "minItems": 10_000, "items": {"type": "string", "maxLength": 20}}),
    ),
}
"""None of them ends before the length does."""


class _Counting:
    """See ``runner.engines.protocol.adapter.Sink``: counts tokens and ends."""

    def __init__(self) -> None:
        self.tokens_seen = 0
        self.ended = threading.Semaphore(0)

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        self.tokens_seen += sum(len(tokens) for _, tokens in new)

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        pass

    def finished(
        self, request_id: int, reason: FinishReason, sequences: list[list[int]] | None = None
    ) -> None:
        self.ended.release()

    def failed(self, request_id: int, error: Exception) -> None:
        print(f"request {request_id}: {error}", file=sys.stderr)
        self.ended.release()

    def broken(self, error: Exception) -> None:
        raise error


class _Meter:
    """Runs batches of equal requests on one engine."""

    def __init__(self, engine: TransformersEngine, sink: _Counting) -> None:
        self._engine = engine
        self._sink = sink
        self._next_id = 0

    def tokens_per_second(self, guide: Guide | None, streams: int, tokens: int) -> float:
        before, start_s = self._sink.tokens_seen, time.perf_counter()
        for _ in range(streams):
            self._next_id += 1
            sampling = Sampling(seed=self._next_id)
            self._engine.submit(Submit(self._next_id, _PROMPT, tokens, sampling, guide=guide))
        for _ in range(streams):
            self._sink.ended.acquire()
        return (self._sink.tokens_seen - before) / (time.perf_counter() - start_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("guides", __doc__)
    parser.add_argument("engine_dir", type=Path, help="a transformers engine with its tokenizer.json")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16], help="requests at the same time")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each; the median counts")
    options = parser.parse_args(arguments)
    sink = _Counting()
    engine = load(options.engine_dir, sink, {"device": "cpu"})
    meter = _Meter(engine, sink)
    print("| streams | output | tokens/s | of free |\n| --- | --- | --- | --- |")
    for streams in options.streams:
        rates: dict[str, list[float]] = {name: [] for name in _GUIDES}
        for number in range(options.rounds + 1):
            for name, guide in _GUIDES.items():
                rate = meter.tokens_per_second(guide, streams, options.tokens)
                if number:  # The first turn compiles and warms up.
                    rates[name].append(rate)
        for name, each in rates.items():
            ratio = statistics.median(own / free for own, free in zip(each, rates[_FREE], strict=True))
            print(f"| {streams} | {name} | {statistics.median(each):.0f} | {ratio:.2f} |")
    engine.close()
    return 0
