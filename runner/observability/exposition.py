"""The text of ``/metrics``: what the runner's processes count, then Triton's own metrics as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import urllib3
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from runner.observability.meter import Reading, read_folder
from runner.observability.metrics import METRICS, PHASES, PLACES, Metric

__all__ = ["CONTENT_TYPE", "exposition"]

_TRITON_TIMEOUT_S = 2.0
_TRITON_UP = "cog_triton_triton_up", "Whether Triton's metrics port answered just now"


def exposition(folder: Path, triton_metrics_url: str | None = None) -> str:
    """``folder`` has the processes' files. If Triton does not answer, its part is missing."""
    triton = None if triton_metrics_url is None else _triton_text(triton_metrics_url)
    lines = (triton or "").splitlines()
    families = [*_families(read_folder(folder), [line for line in lines if line.startswith(PHASES.name)])]
    if triton_metrics_url is not None:
        family = Family(*_TRITON_UP, "gauge")
        family.add_sample(family.name, {}, int(triton is not None))
        families.append(family)
    # NOTE: unparsed, as prometheus_client would add _total to the names of Triton's counters.
    rest = [line for line in lines if PHASES.name not in line]
    return generate_latest(_Families(families)).decode() + "".join(f"{line}\n" for line in rest)


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _families(readings: Iterable[Reading], slot_phases: Iterable[str]) -> Iterator[Family]:
    """``slot_phases``: Triton's lines of a histogram that the slot and the runner share."""
    for metric in METRICS:
        family = Family(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
        for reading in readings:
            for child in metric.children:
                _add_samples(family, metric, child, reading)
        if metric is PHASES:
            for each in text_string_to_metric_families("\n".join(slot_phases)):
                family.samples += each.samples
        yield family


def _add_samples(family: Family, metric: Metric, child: tuple[str, ...], reading: Reading) -> None:
    labels = {"api": reading.api, **dict(zip(metric.labels, child, strict=True))}
    start = PLACES[metric.name, child]
    cells = slice(start, start + metric.num_cells)
    alive, ended = reading.alive[cells], reading.ended[cells]
    if metric.kind == "gauge":
        family.add_sample(metric.name, labels, alive[0])
        return
    # Counts of processes that ended still count.
    *buckets, last = [one + other for one, other in zip(alive, ended, strict=True)]
    if metric.kind == "counter":
        family.add_sample(metric.name, labels, last)
        return
    counts = list(accumulate(buckets))
    for bound, count in zip([*map(str, metric.bounds), "+Inf"], counts, strict=True):
        family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{metric.name}_sum", labels, last)
    family.add_sample(f"{metric.name}_count", labels, counts[-1])


def _triton_text(url: str) -> str | None:
    try:
        response = urllib3.request("GET", url, timeout=_TRITON_TIMEOUT_S, retries=False)
        return response.data.decode() if response.status == 200 else None
    except (urllib3.exceptions.HTTPError, ValueError):
        return None
