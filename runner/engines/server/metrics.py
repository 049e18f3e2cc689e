"""What the engine server counts."""

from __future__ import annotations

import time

from runner.engines.protocol.messages import Statistics
from runner.engines.protocol.relay import End


class EngineMetrics:
    """Counts in plain attributes. ``counts`` gives them to clients by name."""

    def __init__(self, restarts: int = 0) -> None:
        self.tokens = 0
        self._restarts = restarts
        self._submitted = 0
        self._cancelled = 0
        self._ended = dict.fromkeys(("end", "stop", "length", "cancelled", "error"), 0)

    def submitted(self, sent_s: float | None) -> None:
        """A request arrived, which its client sent at ``sent_s`` by ``perf_counter``."""
        self._submitted += 1

    def cancelled(self) -> None:
        self._cancelled += 1

    def ended(self, end: End) -> None:
        self._ended[end if isinstance(end, str) else "error"] += 1

    def completed(self, arrival_s: float, last_token_s: float) -> None:
        """The relay sent the end of a request. Called from the relay's thread."""

    def counts(self, *, running: int, statistics: Statistics) -> dict[str, float]:
        return {"tokens": self.tokens}
