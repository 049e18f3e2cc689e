"""The phases of a request in seconds: tokenize, queue, engine, relay, detokenize.

All processes of a machine use one clock (``perf_counter``, which is Linux's CLOCK_MONOTONIC), so that the
engine server's times and ours can be compared. queue: from sending the request until the engine server
receives it. engine: until its last token, including the engine's own queue. relay: until that token arrives
here. tokenize, queue, engine and relay add up to the time to the last token; detokenize, which includes stop
sequences, runs in parallel.
"""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class TimeBudget:
    """The times of one request. Unknown phases are left out (the last ones after our own stop sequence)."""

    tokenize_s: float = 0.0
    detokenize_s: float = 0.0
    _sent_s: float | None = None
    _arrival_s: float | None = None
    _last_token_s: float | None = None
    _ended_s: float | None = None

    def sent(self) -> float:
        """Note that the request is sent. Return the time, by ``perf_counter``."""
        self._sent_s = time.perf_counter()
        return self._sent_s

    def received_last(self, times_s: tuple[float, float] | None, now_s: float) -> None:
        """Take the engine server's times, if the last output has them; it arrived at ``now_s``."""
        if times_s is not None:
            self._arrival_s, self._last_token_s = times_s
            self._ended_s = now_s

    def edges(self) -> list[tuple[str, float, float]]:
        """Return the known consecutive phases: name, start and end by ``perf_counter``."""
        sent_s = self._sent_s
        edges = (
            ("tokenize", None if sent_s is None else sent_s - self.tokenize_s, sent_s),
            ("queue", sent_s, self._arrival_s),
            ("engine", self._arrival_s, self._last_token_s),
            ("relay", self._last_token_s, self._ended_s),
        )
        return [(name, start, end) for name, start, end in edges if start is not None and end is not None]

    def phases(self) -> dict[str, float]:
        """Return the seconds by phase."""
        known = {name: end - start for name, start, end in self.edges()}
        return {**known, "tokenize": self.tokenize_s, "detokenize": self.detokenize_s}
