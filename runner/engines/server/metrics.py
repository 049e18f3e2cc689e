"""Counts of the engine server. The metrics are described in ``runner.observability.metrics``."""

import threading
import time
from pathlib import Path

from runner.engines.protocol.messages import Statistics
from runner.engines.protocol.relay import End
from runner.observability import metrics
from runner.observability.meter import Meter
from runner.observability.metrics import ENGINE_PHASE_TIMES


class EngineMetrics:
    """Counters that continue those of the previous engine server, whose lost requests count as failed."""

    def __init__(self, engine_kind: str, restarts: int = 0, folder: Path | None = None) -> None:
        """Initialize. ``folder``: see ``Meter``."""
        self._meter = Meter(engine_kind, folder, "engine")
        self._lock = threading.Lock()
        """Lock, because several clients' threads count."""
        self._meter.set(metrics.RESTARTS, restarts)
        cells = list(self._meter.cells)
        num_ended = sum(sample.value for sample in metrics.samples(metrics.ENDED, cells))
        (submitted,) = metrics.samples(metrics.SUBMITTED, cells)
        self._meter.add(metrics.ENDED, submitted.value - num_ended, "error")

    def close(self) -> None:
        """Call this in a forked process, which does not count. See ``Meter``."""
        self._meter.close()

    def submitted(self, sent_s: float | None, arrival_s: float) -> None:
        """Count a request that its client sent at ``sent_s``; both by ``perf_counter``."""
        with self._lock:
            self._meter.add(metrics.SUBMITTED)
            if sent_s is not None and sent_s >= 0:
                self._meter.observe(ENGINE_PHASE_TIMES, max(arrival_s - sent_s, 0.0), "queue")

    def cancelled(self) -> None:
        with self._lock:
            self._meter.add(metrics.CANCELLED)

    def received(self, num_tokens: int) -> None:
        """Count output tokens. Called from the engine's thread alone."""
        self._meter.add(metrics.TOKENS, num_tokens)

    def drafted(self, accepted: int, rejected: int) -> None:
        """Count draft tokens of speculative decoding. Called from the engine's thread alone."""
        self._meter.add(metrics.DRAFT_TOKENS, accepted, "accepted")
        self._meter.add(metrics.DRAFT_TOKENS, rejected, "rejected")

    def ended(self, end: End) -> None:
        with self._lock:
            self._meter.add(metrics.ENDED, 1, end if isinstance(end, str) else "error")

    def completed(self, arrival_s: float, last_token_s: float) -> None:
        """Count a request whose end the relay has sent just now."""
        with self._lock:
            self._meter.observe(ENGINE_PHASE_TIMES, last_token_s - arrival_s, "engine")
            self._meter.observe(ENGINE_PHASE_TIMES, time.perf_counter() - last_token_s, "relay")

    def counts(self, *, running: int, statistics: Statistics) -> list[float]:
        """Return all numbers of this process, with these as its gauges."""
        self._meter.set(metrics.RUNNING, running)
        self._meter.set(metrics.ENGINE_ACTIVE, statistics.active)
        self._meter.set(metrics.QUEUED, statistics.queued)
        self._meter.set(metrics.CACHE_USED, statistics.cache_used or 0.0)
        for figure, place in metrics.ITERATION_PLACES.items():
            self._meter.cells[place] = statistics.gauges.get(figure, 0.0)
        return list(self._meter.cells)
