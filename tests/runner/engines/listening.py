"""An engine directory without a tokenizer, and a listener that remembers what the worker said."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from errors.coded_error import CodedError
from runner.engines.protocol.messages import (
    Failed,
    Finished,
    LogProbs,
    Statistics,
    ToClient,
    TokenLogProb,
    Tokens,
)

DEADLINE_S = 240.0


def make_paced_directory(path: Path, tokens_per_second: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"vocab_size": 1000, "max_position_embeddings": 100_000}))
    (path / "paced.json").write_text(json.dumps({"tokens_per_second": tokens_per_second}))
    return path


class Listening:
    """Hears a worker; ``wait_for`` waits until something is so."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.messages: list[ToClient] = []
        self.losses: list[CodedError] = []
        self.waits = False

    def received(self, messages: list[ToClient]) -> None:
        with self._news:
            self.messages += messages
            self._news.notify_all()

    def lost(self, error: CodedError) -> None:
        with self._news:
            self.losses.append(error)
            self._news.notify_all()

    def is_waiting(self) -> bool:
        return self.waits

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._news:
            assert self._news.wait_for(condition, DEADLINE_S), "it never happened"

    def wait_for_end(self, request_id: int) -> None:
        self.wait_for(lambda: self.ends(request_id))

    def tokens(self, request_id: int) -> list[int]:
        """All output tokens of a request, in order."""
        batches = [message.new for message in self.messages if isinstance(message, Tokens)]
        return [token for batch in batches for its_id, new in batch if its_id == request_id for token in new]

    def log_probs(self, request_id: int) -> list[TokenLogProb]:
        batches = [message.new for message in self.messages if isinstance(message, LogProbs)]
        return [value for batch in batches for its_id, new in batch if its_id == request_id for value in new]

    def ends(self, request_id: int) -> list[str]:
        """How a request ended: finish reasons and errors; one, if all is well."""
        ends: list[str] = []
        for message in self.messages:
            if isinstance(message, Finished) and message.request_id == request_id:
                ends.append(message.reason)
            if isinstance(message, Failed) and message.request_id == request_id:
                ends.append(str(message.error.restore()))
        return ends

    def statistics(self) -> list[Statistics]:
        return [message for message in self.messages if isinstance(message, Statistics)]
