"""Prometheus histograms of the phases of a request that the slot knows; see ``runner.generation.timing``.

Triton has histograms of its own, but each observation there is a message to another process. Here they are
counted in plain lists and handed over once a second, as the counters that a histogram consists of:
``_bucket``, ``_sum`` and ``_count``. ``histogram_quantile`` takes them as they are.
"""

from __future__ import annotations

import bisect
import time
from typing import Any

from runner.observability.metrics import PHASE_BOUNDS_S as BOUNDS_S
from runner.observability.metrics import PHASE_SECONDS as NAME
from runner.observability.metrics import SLOT_PHASES as PHASES

_TEXT = "Time of a request in one phase of its way, in seconds"
_PUBLISH_INTERVAL_S = 1.0


class PhaseTimes:
    """``observe`` one phase from one thread only."""

    def __init__(self, pb_utils: Any) -> None:
        self._counts = {phase: [0] * (len(BOUNDS_S) + 1) for phase in PHASES}
        self._sums_s = dict.fromkeys(PHASES, 0.0)
        self._published: dict[tuple[str, str], float] = {}
        self._next_s = 0.0
        kinds = pb_utils.MetricFamily
        self._families = {
            suffix: kinds(name=NAME + suffix, description=_TEXT, kind=kinds.COUNTER)
            for suffix in ("_bucket", "_sum", "_count")
        }
        self._metrics: dict[tuple[str, str], Any] = {}
        for phase in PHASES:
            for bound in [*map(str, BOUNDS_S), "+Inf"]:
                labels = {"phase": phase, "le": bound}
                self._metrics[phase, bound] = self._families["_bucket"].Metric(labels=labels)
            for suffix in ("_sum", "_count"):
                self._metrics[phase, suffix] = self._families[suffix].Metric(labels={"phase": phase})

    def observe(self, phase: str, seconds: float) -> None:
        self._counts[phase][bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self._sums_s[phase] += seconds

    def publish(self) -> None:
        """Hand what has changed to Triton, once a second at most."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + _PUBLISH_INTERVAL_S
        for phase in PHASES:
            count = 0
            for bound, here in zip([*map(str, BOUNDS_S), "+Inf"], self._counts[phase], strict=True):
                count += here
                self._raise_to((phase, bound), count)
            self._raise_to((phase, "_count"), count)
            self._raise_to((phase, "_sum"), self._sums_s[phase])

    def _raise_to(self, key: tuple[str, str], value: float) -> None:
        if value > (before := self._published.get(key, 0.0)):
            self._metrics[key].increment(value - before)
            self._published[key] = value
