"""The text of ``/metrics``: what the runner's processes and the engine server count, then Triton's metrics.

Triton's metrics port has the engine server's metrics as well; here they come from the engine server alone, so
that they are there while Triton is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import urllib3
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from runner.observability import engine_metrics
from runner.observability.engine_metrics import FAMILIES, FILE_NAME, model_labels_of, read_counts, series_of
from runner.observability.meter import Reading, read_folder
from runner.observability.metrics import METRICS, PHASES, PLACES, Metric

__all__ = ["CONTENT_TYPE", "exposition"]

_TRITON_TIMEOUT_S = 2.0
_TRITON_UP = "cog_triton_triton_up", "Whether Triton's metrics port answered just now"


def exposition(folder: Path, triton_metrics_url: str | None = None) -> str:
    """``folder`` has the processes' files. If Triton does not answer, its part is missing."""
    counts = read_counts(folder / FILE_NAME)
    families = [*_families(read_folder(folder), counts), *_engine_families(counts)]
    rest: Sequence[str] = ()
    if triton_metrics_url is not None:
        triton = _triton_text(triton_metrics_url)
        family = Family(*_TRITON_UP, "gauge")
        family.add_sample(family.name, {}, int(triton is not None))
        families.append(family)
        # NOTE: unparsed, as prometheus_client would add _total to the names of Triton's counters.
        rest = _without((triton or "").splitlines(), {key.partition("{")[0] for key in counts})
    return generate_latest(_Families(families)).decode() + "".join(f"{line}\n" for line in rest)


def _without(lines: Iterable[str], names: set[str]) -> list[str]:
    """The lines that are not about a metric among ``names``."""
    return [line for line in lines if _metric_name(line) not in names]


def _metric_name(line: str) -> str:
    """Of a sample, or of a line of help or type."""
    return line.removeprefix("# HELP ").removeprefix("# TYPE ").partition(" ")[0].partition("{")[0]


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _families(readings: Iterable[Reading], counts: Mapping[str, float]) -> Iterator[Family]:
    for metric in METRICS:
        family = _family(metric)
        for reading in readings:
            for child in metric.children:
                _add_samples(family, metric, child, reading)
        if metric is PHASES:
            _add_counts(family, engine_metrics.PHASES, counts)
        yield family


def _engine_families(counts: Mapping[str, float]) -> Iterator[Family]:
    for metric in FAMILIES:
        family = _family(metric)
        _add_counts(family, metric, counts)
        if family.samples:
            yield family


def _family(metric: Metric) -> Family:
    return Family(metric.name.removesuffix("_total"), metric.meaning, metric.kind)


def _add_counts(family: Family, metric: Metric, counts: Mapping[str, float]) -> None:
    """The series that the engine server counts."""
    for series in series_of(metric):
        if (value := counts.get(series.key)) is not None:
            family.add_sample(series.name, {**series.labels, **model_labels_of(metric)}, value)


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
