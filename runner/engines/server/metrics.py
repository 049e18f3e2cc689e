"""What the engine server counts. The metrics are described in ``runner.observability.engine_metrics``."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from engine.kinds import supports
from runner.engines.protocol.messages import Statistics
from runner.engines.protocol.relay import End
from runner.observability import engine_metrics
from runner.observability.engine_metrics import END_REASONS, ITERATION_SERIES, PHASES, series_of
from runner.observability.metrics import ENGINE_PHASES, Metric

_PHASE_KEYS = [each.key for each in series_of(PHASES)]
_ENDED_KEYS = [each.key for each in series_of(engine_metrics.ENDED)]


class EngineMetrics:
    """Counts in plain attributes; ``counts`` gives the numbers by series."""

    def __init__(
        self, engine_kind: str, restarts: int = 0, earlier: Mapping[str, float] | None = None
    ) -> None:
        """``earlier``: counters of the engine servers before this one."""
        self.tokens = 0
        """Counted by the engine's thread alone."""
        self._restarts = restarts
        self._earlier = earlier or {}
        self._has_iterations = supports(engine_kind, "iteration_metrics")
        self._lock = threading.Lock()
        """Of what follows: several clients' threads count."""
        self._submitted = 0
        self._cancelled = 0
        self._dropped_spans = 0
        self._ended = dict.fromkeys(END_REASONS, 0)
        self._phases = {phase: _Histogram(PHASES) for phase in ENGINE_PHASES}

    def submitted(self, sent_s: float | None, arrival_s: float) -> None:
        """A request arrived, which its client sent at ``sent_s``; both by ``perf_counter``."""
        with self._lock:
            self._submitted += 1
            if sent_s is not None and sent_s >= 0:
                self._phases["queue"].observe(max(arrival_s - sent_s, 0.0))

    def cancelled(self) -> None:
        with self._lock:
            self._cancelled += 1

    def ended(self, end: End) -> None:
        with self._lock:
            self._ended[end if isinstance(end, str) else "error"] += 1

    def completed(self, arrival_s: float, last_token_s: float) -> None:
        """The relay has sent the end of a request just now."""
        with self._lock:
            self._phases["engine"].observe(last_token_s - arrival_s)
            self._phases["relay"].observe(time.perf_counter() - last_token_s)

    def dropped(self, num_spans: int) -> None:
        """Spans that no collector accepted."""
        with self._lock:
            self._dropped_spans += num_spans

    def counts(self, *, running: int, statistics: Statistics) -> dict[str, float]:
        with self._lock:
            phases = [number for each in self._phases.values() for number in each.numbers()]
            counts: dict[str, float] = {
                engine_metrics.SUBMITTED.name: self._submitted,
                engine_metrics.CANCELLED.name: self._cancelled,
                **dict(zip(_ENDED_KEYS, self._ended.values(), strict=True)),
            }
        counts |= {
            engine_metrics.TOKENS.name: self.tokens,
            engine_metrics.RESTARTS.name: self._restarts,
            engine_metrics.DROPPED_SPANS.name: self._dropped_spans,
            engine_metrics.RUNNING.name: running,
            engine_metrics.ACTIVE.name: statistics.active,
            engine_metrics.QUEUED.name: statistics.queued,
            engine_metrics.CACHE_USED.name: statistics.cache_used or 0.0,
            **dict(zip(_PHASE_KEYS, phases, strict=True)),
        }
        if self._has_iterations:
            counts |= {key: statistics.gauges.get(name, 0.0) for name, key in ITERATION_SERIES.items()}
        for key, value in self._earlier.items():
            counts[key] += value
        return counts


class _Histogram:
    """One child of a histogram."""

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.bounds
        self._counts = [0] * (len(metric.bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def numbers(self) -> list[float]:
        """In the order of ``series_of``."""
        buckets = list(accumulate(self._counts))
        return [*buckets, self._sum, buckets[-1]]
