"""A sink in this process that keeps what an engine reports."""

import threading
from collections.abc import Callable, Iterable

from runner.engines.protocol.messages import FinishReason, TokenLogProb

WAIT_S = 300.0


class RecordingSink:
    """See ``runner.engines.protocol.adapter.Sink``. ``wait`` blocks until a request has ended."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, list[int]]]] = []
        self.outputs: dict[int, list[int]] = {}
        self.token_log_probs: dict[int, list[TokenLogProb]] = {}
        self.reasons: dict[int, FinishReason] = {}
        self.embeddings: dict[int, bytes] = {}
        self.sequences: dict[int, list[list[int]]] = {}
        self.errors: dict[int, Exception] = {}
        self.ends: list[int] = []
        self.breaks: list[Exception] = []
        self.cache_hits: list[tuple[int, int]] = []
        self.changed = threading.Condition()

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        with self.changed:
            self.steps.append(list(new))
            for request_id, tokens in self.steps[-1]:
                assert request_id not in self.ends, "tokens after the end"
                self.outputs.setdefault(request_id, []).extend(tokens)
            self.changed.notify_all()

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        with self.changed:
            for request_id, log_probs in new:
                self.token_log_probs.setdefault(request_id, []).extend(log_probs)

    def cached(self, new: Iterable[tuple[int, int]]) -> None:
        self.cache_hits += new

    def finished(
        self,
        request_id: int,
        reason: FinishReason,
        sequences: list[list[int]] | None = None,
        embedding: bytes | None = None,
    ) -> None:
        with self.changed:
            self.reasons[request_id] = reason
            self.sequences[request_id] = sequences or []
            self.embeddings[request_id] = embedding or b""
            self.ends.append(request_id)
            self.changed.notify_all()

    def failed(self, request_id: int, error: Exception) -> None:
        with self.changed:
            self.errors[request_id] = error
            self.ends.append(request_id)
            self.changed.notify_all()

    def broken(self, error: Exception) -> None:
        with self.changed:
            self.breaks.append(error)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), "nothing came of it"

    def end_of(self, request_id: int) -> FinishReason | Exception:
        self.wait_for(lambda: request_id in self.ends)
        return self.errors.get(request_id) or self.reasons[request_id]

    def wait(self, request_id: int) -> tuple[list[int], FinishReason]:
        if isinstance(end := self.end_of(request_id), Exception):
            raise end
        return self.of(request_id), end

    def wait_for_tokens(self, request_id: int, count: int = 1) -> None:
        self.wait_for(lambda: len(self.of(request_id)) >= count or request_id in self.ends)

    def of(self, request_id: int) -> list[int]:
        return self.outputs.get(request_id, [])
