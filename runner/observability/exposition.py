"""All metrics as Prometheus reads them: those of the runner's processes, and after them Triton's own."""

from __future__ import annotations

import fcntl
import re
import urllib.request
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from runner.observability.meter import CELL_BYTES
from runner.observability.metrics import METRICS, NUM_CELLS, PHASES, Metric, layout

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TRITON_TIMEOUT_S = 2.0
_PHASE_LINE = re.compile(rf"(# (?:HELP|TYPE) )?{PHASES.name}_(?:bucket|sum|count)\b")


@dataclass(frozen=True)
class Reading:
    """What the processes of one API have counted: ``ended`` of those that are no more, else ``alive``."""

    api: str
    alive: Sequence[float]
    ended: Sequence[float]


def exposition(folder: Path, triton_metrics_url: str | None = None) -> str:
    """The text of ``/metrics``. A Triton that does not answer leaves out its part, and says so in it."""
    triton = None if triton_metrics_url is None else _triton_text(triton_metrics_url)
    slot_phases, rest = _split(triton or "")
    lines = [*_families(read_folder(folder), slot_phases)]
    if triton_metrics_url is not None:
        lines += ["# HELP cog_triton_triton_up Whether Triton's metrics port answered just now"]
        lines += ["# TYPE cog_triton_triton_up gauge", f"cog_triton_triton_up {int(triton is not None)}"]
    return "\n".join([*lines, *rest]) + "\n"


def read_folder(folder: Path) -> list[Reading]:
    """By API, ordered. A file that is being made is left out."""
    sums: dict[str, tuple[list[float], list[float]]] = {}
    for path in sorted(folder.glob("*-*")) if folder.is_dir() else ():
        with path.open("rb") as file:
            cells = array("d")
            data = file.read(NUM_CELLS * CELL_BYTES)
            if len(data) < NUM_CELLS * CELL_BYTES:
                continue
            cells.frombytes(data)
            api = path.name.rpartition("-")[0]
            alive, ended = sums.setdefault(api, ([0.0] * NUM_CELLS, [0.0] * NUM_CELLS))
            kept = alive if _is_locked(file.fileno()) else ended
            kept[:] = [one + more for one, more in zip(kept, cells, strict=True)]
    return [Reading(api, *both) for api, both in sorted(sums.items())]


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _families(readings: Iterable[Reading], slot_phases: Iterable[str]) -> Iterator[str]:
    readings = list(readings)
    places = layout()
    for metric in METRICS:
        yield f"# HELP {metric.name} {metric.meaning}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for reading in readings:
            for child in metric.children:
                start = places[metric.name, child]
                yield from _samples(metric, child, reading, slice(start, start + metric.num_cells))
        if metric is PHASES:
            yield from slot_phases


def _samples(metric: Metric, child: tuple[str, ...], reading: Reading, place: slice) -> Iterator[str]:
    labels = ",".join(
        f'{name}="{value}"'
        for name, value in zip(("api", *metric.labels), (reading.api, *child), strict=True)
    )
    alive, ended = reading.alive[place], reading.ended[place]
    if metric.kind == "gauge":
        yield f"{metric.name}{{{labels}}} {alive[0]:.17g}"
        return
    # What processes that ended have counted is still counted.
    *counts, last = [one + other for one, other in zip(alive, ended, strict=True)]
    if metric.kind == "counter":
        yield f"{metric.name}{{{labels}}} {last:.17g}"
        return
    totals = list(accumulate(counts))
    for bound, total in zip([*map(str, metric.bounds), "+Inf"], totals, strict=True):
        yield f'{metric.name}_bucket{{{labels},le="{bound}"}} {total:.17g}'
    yield f"{metric.name}_sum{{{labels}}} {last:.17g}"
    yield f"{metric.name}_count{{{labels}}} {totals[-1]:.17g}"


def _split(triton: str) -> tuple[list[str], list[str]]:
    """Lines of the slot's phases, which here belong to a histogram of ours, and all others."""
    phases, rest = [], []
    for line in triton.splitlines():
        match = _PHASE_LINE.match(line)
        if match is None:
            rest.append(line)
        elif match[1] is None:
            phases.append(line)
    return phases, rest


def _triton_text(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_TRITON_TIMEOUT_S) as response:  # noqa: S310 - our own Triton
            text: str = response.read().decode()
    except (OSError, ValueError):
        return None
    return text


def clear_folder(folder: Path) -> None:
    """Make the folder, without what processes of an earlier runner left."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*-*"):
        path.unlink()
