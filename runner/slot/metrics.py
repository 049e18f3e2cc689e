"""The slot's own Prometheus metrics, on Triton's metrics port. Names end in their unit or ``_total``."""

from __future__ import annotations

from typing import Any

from runner.engines.protocol.messages import Statistics
from runner.slot.iteration_metrics import IterationMetrics
from runner.slot.phases import PhaseTimes
from runner.slot.relay import End

COUNTERS = {
    "cog_triton_slot_requests_total": "Requests submitted to the engine",
    "cog_triton_slot_ended_requests_total": "Requests whose end the engine confirmed, by reason",
    "cog_triton_slot_cancel_requests_total": "Cancellations sent to the engine",
    "cog_triton_slot_tokens_total": "Output tokens received from the engine",
    "cog_triton_engine_restarts_total": "Restarts of the engine worker after it died",
}
GAUGES = {
    "cog_triton_slot_running_requests": "Requests the engine holds, by the slot's own count",
    "cog_triton_engine_active_requests": "Requests in the engine's batch, by the engine's own count",
    "cog_triton_engine_queued_requests": "Requests waiting in the engine's queue",
    "cog_triton_engine_cache_used_ratio": "Share of the engine's KV cache in use, 0..1",
}
_END_REASONS = ("end", "stop", "length", "cancelled", "error")


class SlotMetrics:
    """Counts are plain attributes, cheap to change; ``publish`` hands the changes to Triton.

    Every update of a Triton metric is a message to another process, so it is not done per event.
    """

    def __init__(self, pb_utils: Any) -> None:
        self.submitted = 0
        self.cancel_requests = 0
        self.tokens = 0
        self.statistics = Statistics(active=0, queued=0)
        self.iteration: IterationMetrics | None = None
        """For an engine whose library has figures of its own."""
        self.phases = PhaseTimes(pb_utils)
        self._ended = dict.fromkeys(_END_REASONS, 0)
        self._published: dict[str, float] = {}
        kinds = pb_utils.MetricFamily
        self._families = [
            kinds(name=name, description=text, kind=kind)
            for texts, kind in ((COUNTERS, kinds.COUNTER), (GAUGES, kinds.GAUGE))
            for name, text in texts.items()
        ]
        self._metrics: dict[str, Any] = {}
        for family, name in zip(self._families, [*COUNTERS, *GAUGES], strict=True):
            for labels in labels_of(name):
                self._metrics[name + "".join(labels.values())] = family.Metric(labels=labels)

    def ended(self, end: End) -> None:
        self._ended[end if isinstance(end, str) else "error"] += 1

    def publish(self, restarts: int, running: int = 0) -> None:
        if self.iteration is not None:
            self.iteration.publish(self.statistics.gauges)
        values: dict[str, float] = {
            "cog_triton_slot_requests_total": self.submitted,
            "cog_triton_slot_cancel_requests_total": self.cancel_requests,
            "cog_triton_slot_tokens_total": self.tokens,
            "cog_triton_engine_restarts_total": restarts,
            "cog_triton_slot_running_requests": running,
            "cog_triton_engine_active_requests": self.statistics.active,
            "cog_triton_engine_queued_requests": self.statistics.queued,
            "cog_triton_engine_cache_used_ratio": self.statistics.cache_used or 0.0,
        }
        for reason, count in self._ended.items():
            values["cog_triton_slot_ended_requests_total" + reason] = count
        for key, value in values.items():
            before = self._published.get(key, 0.0)
            if value == before:
                continue
            if "_total" in key:
                self._metrics[key].increment(value - before)
            else:
                self._metrics[key].set(value)
            self._published[key] = value
        self.phases.publish()


def labels_of(name: str) -> list[dict[str, str]]:
    if name == "cog_triton_slot_ended_requests_total":
        return [{"reason": reason} for reason in _END_REASONS]
    return [{}]
