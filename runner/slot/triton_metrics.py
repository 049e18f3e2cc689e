"""The engine server's metrics (``engines.server.metrics``), published on Triton's metrics port.

Each update of a Triton metric is a message to another process, so only what has changed is published.
Triton's own histograms take one message for each observation: a histogram is published as the counters that
it consists of, which ``histogram_quantile`` reads like any other.
"""

from collections.abc import Sequence
from typing import Any

from runner.observability.metrics import NUM_CELLS, metrics_of, samples


class TritonMetrics:
    def __init__(self, pb_utils: Any, engine_kind: str) -> None:
        kinds = pb_utils.MetricFamily
        self._metrics = metrics_of(engine_kind)
        self._families: dict[str, Any] = {}
        """Triton forgets a family that is not referred to."""
        self._published: list[tuple[Any, bool]] = []
        """Triton's metric, and whether it is a gauge, of each number."""
        for metric in self._metrics:
            is_gauge = metric.kind == "gauge"
            for name, labels, _ in samples(metric, [0.0] * NUM_CELLS):
                if name not in self._families:
                    kind = kinds.GAUGE if is_gauge else kinds.COUNTER
                    self._families[name] = kinds(name=name, description=metric.meaning, kind=kind)
                self._published.append((self._families[name].Metric(labels=labels), is_gauge))
        self._sent = [0.0] * len(self._published)

    def publish(self, counts: Sequence[float]) -> None:
        """Send what has changed of the engine server's ``Statistics.counts``."""
        self._publish([sample.value for metric in self._metrics for sample in samples(metric, counts)])

    def engine_lost(self) -> None:
        """Set gauges to 0 until the next ``publish``: there is no engine server."""
        pairs = zip(self._published, self._sent, strict=True)
        self._publish([0.0 if is_gauge else sent for (_, is_gauge), sent in pairs])

    def _publish(self, values: list[float]) -> None:
        for (metric, is_gauge), value, sent in zip(self._published, values, self._sent, strict=True):
            if is_gauge and value != sent:
                metric.set(value)
            elif value != sent:
                # Lower: a new engine server that has lost the counts before counts from zero.
                metric.increment(value - sent if value > sent else value)
        self._sent = values
