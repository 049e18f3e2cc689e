"""Where a request's time went: queue, tokenize, engine, relay, detokenize, in seconds.

One clock for all processes of a machine (Linux's CLOCK_MONOTONIC, which ``perf_counter`` is), so that the
slot's times and ours can be compared. queue: from our request until the slot has it. engine: until the slot
hears its last token, the engine's own queue included. relay: until that token is here. Together with tokenize
they make up the time to the last token; detokenize happens meanwhile, stop sequences included.
"""

from __future__ import annotations

import time


class TimeBudget:
    """Of one request. A phase that is not known (the end, after a stop sequence of ours, say) is left out."""

    __slots__ = (
        "_arrival_s",
        "_ended_s",
        "_is_slot_ours",
        "_last_token_s",
        "_sent_s",
        "detokenize_s",
        "tokenize_s",
    )

    def __init__(self, *, is_slot_ours: bool = True) -> None:
        """NVIDIA's own backend in the slot's place is told nothing and asked nothing."""
        self._is_slot_ours = is_slot_ours
        self.tokenize_s = 0.0
        self.detokenize_s = 0.0
        self._sent_s: float | None = None
        self._arrival_s: float | None = None
        self._last_token_s: float | None = None
        self._ended_s: float | None = None

    def sent(self, *, asks_slot: bool) -> dict[str, object]:
        """The request goes out now; returns tensors for the slot. ``asks_slot`` for what only it knows."""
        self._sent_s = time.perf_counter()
        if not self._is_slot_ours:
            return {}
        told: dict[str, object] = {"runner_seconds": [self._sent_s]}
        return told | {"return_perf_metrics": True} if asks_slot else told

    def slot_told(self, arrival_ns: int | None, last_token_ns: int | None, now_s: float) -> None:
        """What the slot's last event says, if it was asked; it came ``now_s``."""
        if arrival_ns is not None and last_token_ns is not None:
            self._arrival_s = arrival_ns / 1e9
            self._last_token_s = last_token_ns / 1e9
            self._ended_s = now_s

    def edges(self) -> list[tuple[str, float, float]]:
        """Phases that follow each other, those that are known: name, start and end by ``perf_counter``."""
        sent_s = self._sent_s
        edges = (
            ("tokenize", None if sent_s is None else sent_s - self.tokenize_s, sent_s),
            ("queue", sent_s, self._arrival_s),
            ("engine", self._arrival_s, self._last_token_s),
            ("relay", self._last_token_s, self._ended_s),
        )
        return [(name, start, end) for name, start, end in edges if start is not None and end is not None]

    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        known = {name: end - start for name, start, end in self.edges()}
        return {**known, "tokenize": self.tokenize_s, "detokenize": self.detokenize_s}
