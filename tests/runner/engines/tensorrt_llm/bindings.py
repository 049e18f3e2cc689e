"""The stand-in for TensorRT-LLM's bindings, in this process, and a sink that remembers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from runner.engines.protocol.messages import FinishReason, TokenLogProb
from tests.runner.tensorrt_llm_engine import STANDINS

DEADLINE_S = 240.0


def bindings() -> Any:
    if str(STANDINS) not in sys.path:
        sys.path.append(str(STANDINS))
    return import_module("tensorrt_llm.bindings.executor")


class RecordingSink:
    """See ``runner.engines.protocol.adapter.Sink``."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.steps: list[list[tuple[int, list[int]]]] = []
        self.ends: dict[int, Any] = {}
        self.sequences: dict[int, list[list[int]]] = {}
        self.breaks: list[Exception] = []
        self.cache_hits: list[tuple[int, int]] = []

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        with self._news:
            self.steps.append(list(new))
            self._news.notify_all()

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        raise AssertionError(new)

    def cached(self, new: Iterable[tuple[int, int]]) -> None:
        self.cache_hits += new

    def finished(
        self,
        request_id: int,
        reason: FinishReason,
        sequences: list[list[int]] | None = None,
        embedding: bytes | None = None,
    ) -> None:
        if sequences is not None:
            self.sequences[request_id] = sequences
        self._end(request_id, reason)

    def failed(self, request_id: int, error: Exception) -> None:
        self._end(request_id, error)

    def broken(self, error: Exception) -> None:
        with self._news:
            self.breaks.append(error)
            self._news.notify_all()

    def _end(self, request_id: int, end: Any) -> None:
        with self._news:
            assert request_id not in self.ends
            self.ends[request_id] = end
            self._news.notify_all()

    def of(self, request_id: int) -> list[int]:
        """All tokens of a request."""
        return [token for step in self.steps for its_id, new in step if its_id == request_id for token in new]

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._news:
            assert self._news.wait_for(condition, DEADLINE_S), "it never happened"

    def end_of(self, request_id: int) -> Any:
        self.wait_for(lambda: request_id in self.ends)
        return self.ends[request_id]
