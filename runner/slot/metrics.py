"""The engine server's metrics on Triton's metrics port.

Each update of a Triton metric is a message to another process, so only what has changed is published.
Triton's own histograms take one message for each observation: a histogram is published as the counters that
it consists of, which ``histogram_quantile`` reads like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.observability.engine_metrics import PHASES, families_of, model_labels_of, series_of


class SlotMetrics:
    def __init__(self, pb_utils: Any, engine_kind: str, model: Mapping[str, str]) -> None:
        """``model``: labels ``model`` and ``version``."""
        kinds = pb_utils.MetricFamily
        self._counters: dict[str, Any] = {}
        self._gauges: dict[str, Any] = {}
        self._families: dict[str, Any] = {}
        """Triton forgets a family that is not referred to."""
        for family in (*families_of(engine_kind), PHASES):
            for series in series_of(family):
                if series.name not in self._families:
                    kind = kinds.COUNTER if series.is_counter else kinds.GAUGE
                    made = kinds(name=series.name, description=family.meaning, kind=kind)
                    self._families[series.name] = made
                labels = {**series.labels, **model_labels_of(family, model)}
                metric = self._families[series.name].Metric(labels=labels)
                (self._counters if series.is_counter else self._gauges)[series.key] = metric
        self._sent: dict[str, float] = {}

    def publish(self, counts: Mapping[str, float]) -> None:
        """Send what has changed of the engine server's ``Statistics.counts``."""
        for key, value in counts.items():
            if value == (sent := self._sent.get(key, 0.0)):
                continue
            if (counter := self._counters.get(key)) is not None:
                # Lower: a new engine server that has lost the counts before counts from zero.
                counter.increment(value - sent if value > sent else value)
            elif (gauge := self._gauges.get(key)) is not None:
                gauge.set(value)
            self._sent[key] = value

    def engine_lost(self) -> None:
        """There is no engine server: gauges are 0 until the next ``publish``."""
        self.publish(dict.fromkeys(self._gauges, 0.0))
