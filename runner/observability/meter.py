"""Counts the metrics in memory that is a file, so that any process can answer ``/metrics``.

Each process that generates has its own file ``<api>-<pid>`` in the metrics folder, and holds a lock on it as
long as it lives. Counting adds to a number in memory. The files of prometheus_client cost 4 to 6 times as
much, and a vLLM below us would join them by the environment variable.
NOTE: one thread of a process counts: that of its event loop.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.observability import metrics
from runner.observability.metrics import NUM_CELLS, PLACES, UNEXPECTED, Metric

_FILE_BYTES = NUM_CELLS * 8
_TOKEN_BOUNDS_S = metrics.INTER_TOKEN_LATENCY.bounds


class Histogram:
    """One child of a histogram."""

    __slots__ = ("_bounds", "_cells", "_start", "_sum")

    def __init__(self, cells: memoryview[float], metric: Metric, *labels: str) -> None:
        self._cells = cells
        self._bounds = metric.bounds
        self._start = PLACES[metric.name, labels]
        self._sum = self._start + len(metric.bounds) + 1

    def observe(self, seconds: float, count: int = 1) -> None:
        cells = self._cells
        cells[self._start + bisect_left(self._bounds, seconds)] += count
        cells[self._sum] += seconds * count

    def add(self, counts: Sequence[int], sum_s: float) -> None:
        """Add observations that were counted by bucket before."""
        for index, count in enumerate(counts, self._start):
            if count:
                self._cells[index] += count
        self._cells[self._sum] += sum_s


class Meter:
    """Counts of one process. ``api`` labels all of them: cog or openai."""

    def __init__(self, api: str, folder: Path | None = None) -> None:
        """Without a folder no other process can read it."""
        self._file = None if folder is None else _own_file(folder / f"{api}-{os.getpid()}")
        memory = mmap.mmap(-1 if self._file is None else self._file, _FILE_BYTES)
        self.cells = memoryview(memory).cast("d")
        self.queue = Histogram(self.cells, metrics.QUEUE)
        self.first_token = Histogram(self.cells, metrics.TIME_TO_FIRST_TOKEN)
        self.between_tokens = Histogram(self.cells, metrics.INTER_TOKEN_LATENCY)
        self.duration = Histogram(self.cells, metrics.DURATION)
        self.tokenize = Histogram(self.cells, metrics.PHASES, "tokenize")
        self.detokenize = Histogram(self.cells, metrics.PHASES, "detokenize")

    def add(self, metric: Metric, amount: float = 1) -> None:
        """To a counter or gauge without labels."""
        self.cells[PLACES[metric.name, ()]] += amount

    def ended(self, outcome: str, code: str = "") -> None:
        """Count the end of a request, also of one that was refused before its ``RequestMeter`` began."""
        place = PLACES.get((metrics.REQUESTS.name, (outcome, code)))
        self.cells[PLACES[metrics.REQUESTS.name, ("failed", UNEXPECTED)] if place is None else place] += 1

    def refused(self, code: str) -> None:
        self.ended("failed", code)

    def close(self) -> None:
        """The counts stay in the file; readers treat the process as ended."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class RequestMeter:
    """Counts one request: ``began``, ``sent``, ``received`` for each batch of tokens, ``ended``."""

    __slots__ = ("_arrived_s", "_counts", "_error_code", "_first_s", "_last_s", "_meter")

    def __init__(self, meter: Meter, arrived_s: float | None = None) -> None:
        """``arrived_s``: when the request arrived, by ``perf_counter``; None: now."""
        self._meter = meter
        self._arrived_s = time.perf_counter() if arrived_s is None else arrived_s
        self._first_s = self._last_s = 0.0
        self._counts = [0] * (len(_TOKEN_BOUNDS_S) + 1)
        self._error_code: str | None = None

    def began(self) -> None:
        self._meter.add(metrics.ACTIVE)

    def sent(self, tokenize_s: float) -> None:
        waited_s = time.perf_counter() - self._arrived_s - tokenize_s
        self._meter.queue.observe(max(waited_s, 0.0))
        self._meter.tokenize.observe(tokenize_s)

    def received(self, num_tokens: int, now_s: float) -> None:
        """Tokens arrived together. NOTE: a hot path, once per token of a busy runner."""
        if self._last_s:
            self._counts[bisect_left(_TOKEN_BOUNDS_S, (now_s - self._last_s) / num_tokens)] += num_tokens
        else:
            self._first_s = now_s
            self._meter.first_token.observe(now_s - self._arrived_s)
        self._last_s = now_s

    def failed(self, code: str) -> None:
        self._error_code = code

    def ended(self, *, is_finished: bool, input_tokens: int, output_tokens: int, detokenize_s: float) -> None:
        """``is_finished``: the text is complete. Else, without an error, its client cancelled it."""
        meter = self._meter
        meter.add(metrics.ACTIVE, -1)
        meter.add(metrics.INPUT_TOKENS, input_tokens)
        meter.add(metrics.OUTPUT_TOKENS, output_tokens)
        meter.duration.observe(time.perf_counter() - self._arrived_s)
        if self._last_s:
            meter.between_tokens.add(self._counts, self._last_s - self._first_s)
            meter.detokenize.observe(detokenize_s)
        if self._error_code is not None:
            meter.ended("failed", self._error_code)
        else:
            meter.ended("succeeded" if is_finished else "cancelled")


def _own_file(path: Path) -> int:
    """A new file of zeros, locked as long as this process has it open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.ftruncate(descriptor, _FILE_BYTES)
    return descriptor


@dataclass(frozen=True)
class Reading:
    """Sums over the processes of one API: of those that live, and of those that ended."""

    api: str
    alive: Sequence[float]
    ended: Sequence[float]


def read_folder(folder: Path) -> list[Reading]:
    """Ordered by API. A file that is not complete yet is left out."""
    sums: dict[str, tuple[list[float], list[float]]] = {}
    for path in sorted(folder.glob("*-*")):
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES)
            if len(data) < _FILE_BYTES:
                continue
            alive, ended = sums.setdefault(
                path.name.rpartition("-")[0], ([0.0] * NUM_CELLS, [0.0] * NUM_CELLS)
            )
            total = alive if _is_locked(file.fileno()) else ended
            total[:] = [one + other for one, other in zip(total, array("d", data), strict=True)]
    return [Reading(api, *both) for api, both in sorted(sums.items())]


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
