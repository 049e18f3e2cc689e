"""Counting of metrics in memory that is a file, so that any process can answer ``/metrics``.

Each process that counts has its own file in the metrics folder: ``<api>-<pid>``, or ``<kind>-engine`` for the
engine server. It holds a lock on the file as long as it lives. Counting adds to a number in memory. The files
of prometheus_client cost 4 to 6 times as much, and a vLLM below us would join them by the environment
variable.
NOTE: no two threads may count in the same metric at a time.
"""

import fcntl
import mmap
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from pathlib import Path

from runner.observability import metrics
from runner.observability.metrics import NUM_CELLS, PLACES, UNEXPECTED, Metric

_FILE_BYTES = NUM_CELLS * 8
_TOKEN_BOUNDS_S = metrics.INTER_TOKEN_LATENCY.bounds


class Meter:
    """Counts of one process. ``source``: its API, cog or openai, or the engine server's kind of engine."""

    def __init__(self, source: str, folder: Path | None = None, name: str = "") -> None:
        """Initialize. Without a folder no other process can read the counts.

        ``name``: the process's, by default its id. The next process of a name continues its counts.
        """
        self._file: int | None = None
        if folder is not None:
            with suppress(OSError):  # On a full disk it counts for itself alone.
                self._file = _own_file(folder / f"{source}-{name or os.getpid()}")
        memory = mmap.mmap(-1 if self._file is None else self._file, _FILE_BYTES)
        self.cells = memoryview(memory).cast("d")
        for metric in metrics.metrics_of(source):
            if metric.kind == "gauge":
                for child in metric.children:
                    self.set(metric, 0.0, *child)

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        self.cells[PLACES[metric.name, labels] if labels else metric.start] += amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        self.cells[PLACES[metric.name, labels]] = value

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add an observation to a histogram."""
        start = PLACES[metric.name, labels] if labels else metric.start
        bounds, cells = metric.bounds, self.cells
        cells[start + bisect_left(bounds, seconds)] += 1
        cells[start + len(bounds) + 1] += seconds

    def observe_all(self, metric: Metric, counts: Sequence[int], sum_s: float) -> None:
        """Add observations to a histogram without labels, already counted by bucket."""
        start = metric.start
        for index, count in enumerate(counts, start):
            if count:
                self.cells[index] += count
        self.cells[start + len(counts)] += sum_s

    def ended(self, outcome: str, code: str = "") -> None:
        """Count the end of a request, also of one that was refused before its ``RequestMeter`` began."""
        place = PLACES.get((metrics.REQUESTS.name, (outcome, code)))
        self.cells[PLACES[metrics.REQUESTS.name, ("failed", UNEXPECTED)] if place is None else place] += 1

    def close(self) -> None:
        """Leave the counts in the file. Readers treat the process as ended."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            # NOTE: mmap has the file open, and by it the lock, as long as anything refers to it.
            self.cells = memoryview(array("d", self.cells))


class RequestMeter:
    """Counts of one request: ``began``, ``sent``, ``received`` for each batch of tokens, ``ended``."""

    __slots__ = ("_arrived_s", "_counts", "_first_s", "_last_s", "_meter")

    def __init__(self, meter: Meter, arrived_s: float | None = None) -> None:
        """Initialize. ``arrived_s``: when the request arrived, by ``perf_counter``; None: now."""
        self._meter = meter
        self._arrived_s = time.perf_counter() if arrived_s is None else arrived_s
        self._first_s = self._last_s = 0.0
        self._counts = [0] * (len(_TOKEN_BOUNDS_S) + 1)

    def began(self) -> None:
        self._meter.add(metrics.ACTIVE)

    def sent(self, tokenize_s: float) -> None:
        waited_s = time.perf_counter() - self._arrived_s - tokenize_s
        self._meter.observe(metrics.QUEUE, max(waited_s, 0.0))
        self._meter.observe(metrics.PHASES, tokenize_s, "tokenize")

    def received(self, num_tokens: int, now_s: float) -> None:
        """Count tokens that arrived together. NOTE: a hot path, once per token of a busy runner."""
        if self._last_s:
            self._counts[bisect_left(_TOKEN_BOUNDS_S, (now_s - self._last_s) / num_tokens)] += num_tokens
        else:
            self._first_s = now_s
            self._meter.observe(metrics.TIME_TO_FIRST_TOKEN, now_s - self._arrived_s)
        self._last_s = now_s

    def ended(
        self,
        *,
        is_finished: bool,
        error: str,
        input_tokens: int,
        output_tokens: int,
        detokenize_s: float,
        cached_tokens: int = 0,
    ) -> None:
        """Count the end. ``is_finished``: the text is complete. Else, without a code, it was cancelled."""
        meter = self._meter
        meter.add(metrics.ACTIVE, -1)
        meter.add(metrics.INPUT_TOKENS, input_tokens)
        meter.add(metrics.CACHED_TOKENS, cached_tokens)
        meter.add(metrics.OUTPUT_TOKENS, output_tokens)
        meter.observe(metrics.DURATION, time.perf_counter() - self._arrived_s)
        if self._last_s:
            sum_s = self._last_s - self._first_s
            meter.observe_all(metrics.INTER_TOKEN_LATENCY, self._counts, sum_s)
            meter.observe(metrics.PHASES, detokenize_s, "detokenize")
        meter.ended("failed" if error else "succeeded" if is_finished else "cancelled", error)


def _own_file(path: Path) -> int:
    """Return a new file of zeros, or that of an ended process, locked as long as this one has it open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.posix_fallocate(descriptor, 0, _FILE_BYTES)  # Else a full disk would end this process by SIGBUS.
    return descriptor


@dataclass(frozen=True)
class Reading:
    """Sums over the processes of a source: the live ones, and all."""

    source: str
    alive: list[float]
    all: list[float]


def read_folder(folder: Path) -> list[Reading]:
    """Read the folder, ordered by source. A file that is not complete yet is left out."""
    readings: dict[str, Reading] = {}
    for path in sorted(folder.glob("*-*")):
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES)
            if len(data) < _FILE_BYTES:
                continue
            source = path.name.rpartition("-")[0]
            reading = readings.setdefault(source, Reading(source, [0.0] * NUM_CELLS, [0.0] * NUM_CELLS))
            for total in [reading.all, *([reading.alive] if _is_locked(file.fileno()) else [])]:
                total[:] = map(add, total, array("d", data))
    return list(readings.values())


def is_counting(folder: Path) -> bool:
    """Return True if a live process counts there."""
    for path in folder.glob("*-*"):
        with path.open("rb") as file:
            if _is_locked(file.fileno()):
                return True
    return False


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def clear_folder(folder: Path) -> None:
    """Make the folder, or remove the files of an earlier runner from it."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
