"""The text of ``/metrics``: what the runner's processes and the engine server count, then Triton's metrics.

Triton's metrics port has the engine server's metrics as well; here they come from the engine server alone, so
that they are there while Triton is not.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import urllib3
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from runner.observability.meter import Reading, read_folder
from runner.observability.metrics import ENGINE_METRICS, METRICS, metrics_of, samples

__all__ = ["CONTENT_TYPE", "exposition"]

MoreFamilies = Callable[[Sequence[Reading]], Iterable[Family]]
"""Function that makes further metrics of what the processes counted."""
_TRITON_TIMEOUT_S = 2.0
_TRITON_UP = "cog_triton_triton_up", "Whether Triton's metrics port answered just now"


def exposition(folder: Path, triton_metrics_url: str | None = None, more: MoreFamilies | None = None) -> str:
    """Return the text, from processes' files in ``folder``, without Triton's part if it does not answer."""
    readings = read_folder(folder)
    families = [*_families(readings), *(more(readings) if more is not None else ())]
    rest: list[str] = []
    if triton_metrics_url is not None:
        triton = _triton_text(triton_metrics_url)
        family = Family(*_TRITON_UP, "gauge")
        family.add_sample(family.name, {}, int(triton is not None))
        families.append(family)
        # NOTE: keep the text, because prometheus_client would add _total to the names of Triton's counters.
        ours = {sample.name for family in families for sample in family.samples}
        rest = [line for line in (triton or "").splitlines(keepends=True) if _metric_name(line) not in ours]
    return generate_latest(_Families(families)).decode() + "".join(rest)


def _metric_name(line: str) -> str:
    """Return the metric's name in a sample, or in a line of help or type."""
    return line.removeprefix("# HELP ").removeprefix("# TYPE ").partition(" ")[0].partition("{")[0]


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _families(readings: Iterable[Reading]) -> list[Family]:
    """Return the metrics of the runner, and of the engine server if it has counted."""
    families: dict[str, Family] = {}
    for metric in (*METRICS, *ENGINE_METRICS):
        new = Family(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
        family = families.setdefault(metric.name, new)
        for reading in readings:
            if metric not in metrics_of(reading.source):
                continue
            # Counts of processes that ended still count.
            cells = reading.alive if metric.kind == "gauge" else reading.all
            api = {"api": reading.source} if metric in METRICS else {}
            for sample in samples(metric, cells):
                family.add_sample(sample.name, {**api, **sample.labels}, sample.value)
    always = {metric.name for metric in METRICS}
    return [family for name, family in families.items() if family.samples or name in always]


def _triton_text(url: str) -> str | None:
    try:
        response = urllib3.request("GET", url, timeout=_TRITON_TIMEOUT_S, retries=False)
        return response.data.decode() if response.status == 200 else None
    except (urllib3.exceptions.HTTPError, ValueError):
        return None
