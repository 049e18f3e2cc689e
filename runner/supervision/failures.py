"""Failures of supervised processes: their likely cause, and when they are too many to go on."""

import asyncio
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

from runner.observability.logs import JSON, LOGGER, document
from runner.supervision.child import Log

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits between attempts to start; the last one repeats."""
_STABLE_S = 60.0
"""Time after which the failure of a process that was ready is not an early one."""
_LAST_LINES = 30
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")
_LOG_CAUSES = (
    (
        re.compile(r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation"),
        "the GPU's memory was full",
    ),
    (re.compile(r"CUDA error|cudaError|CUDA driver error|\bXid\b"), "a CUDA error"),
    (re.compile(r"NCCL (error|WARN)|ncclSystemError|ncclUnhandledCudaError"), "GPUs lost each other (NCCL)"),
    (re.compile(r"No space left on device"), "a disk or /dev/shm was full"),
    (re.compile(r"MemoryError|std::bad_alloc|Cannot allocate memory"), "memory was full"),
)
_SIGNAL_CAUSES = {
    "SIGSEGV": "a crash in native code",
    "SIGABRT": "native code gave up (an assertion or an unhandled exception)",
    "SIGBUS": "a crash in native code, often because /dev/shm is full",
    "SIGFPE": "a crash in native code",
    "SIGILL": "native code that this processor can't run",
    "SIGKILL": "killed by an operator, or by the kernel because memory was full",
    "SIGTERM": "ended by another process",
}


@dataclass(frozen=True)
class ProcessFailure:
    """Death or hang of a process. ``part``: triton, triton start or engine."""

    part: str
    reason: str
    log_tail: tuple[str, ...]
    counts: bool = True
    """True if it counts towards the limit: not if clients may have caused it."""


def oom_kills() -> int:
    """Return the number of this container's processes that the kernel killed for memory; 0 if unknown."""
    try:
        events = dict(line.split() for line in _CGROUP_EVENTS.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(events.get("oom_kill", 0))


def likely_cause(failure: ProcessFailure, new_oom_kills: int) -> str:
    """Return the cause in words, by the most certain sign."""
    if new_oom_kills:
        return "memory was full: the kernel killed a process of this container"
    if "SIGSTOP" in failure.reason or "did not answer" in failure.reason or "hangs" in failure.reason:
        return "it hung"
    lines = (failure.reason, *reversed(failure.log_tail))
    for pattern, cause in _LOG_CAUSES:
        if (line := next(filter(pattern.search, lines), None)) is not None:
            return f"{cause}: {line.strip()[:300]}"
    return next((cause for name, cause in _SIGNAL_CAUSES.items() if name in failure.reason), "unknown")


class Backoff:
    """Waits between attempts to start a process. They go on to grow if it fails soon after it was ready."""

    def __init__(self) -> None:
        self._ready_s = time.monotonic()
        self._failures = -1

    def ready(self) -> None:
        self._ready_s = time.monotonic()

    def failed(self) -> None:
        """Note that the process was ready, and can't go on."""
        is_stable = time.monotonic() - self._ready_s > _STABLE_S
        self._failures = 0 if is_stable else self._failures + 1

    def waits_s(self) -> Iterator[float]:
        waits_s = (0.0, *BACKOFF_S)
        return chain(waits_s[self._failures :], repeat(waits_s[-1]))


class FailureReport:
    """Log lines of failures of a runner's processes; as JSON with all known facts."""

    def __init__(self, log_format: str | None, facts: Callable[[], Mapping[str, object]]) -> None:
        """Initialize. ``facts`` returns facts of the runner, never a prompt or a text, at each failure."""
        self._is_json = log_format == JSON
        self._facts = facts
        self._oom_kills = oom_kills()

    def line(self, failure: ProcessFailure) -> str:
        kills, self._oom_kills = self._oom_kills, oom_kills()
        cause = likely_cause(failure, self._oom_kills - kills)
        message = f"{failure.part} failed: {failure.reason}; likely cause: {cause}"
        if not self._is_json:
            return message
        fields = {"part": failure.part, "reason": failure.reason, "likely_cause": cause, **self._facts()}
        last_lines = failure.log_tail[-_LAST_LINES:]
        return document(
            "error", LOGGER, message, **fields, machine=platform.platform(), last_lines=last_lines
        )


@dataclass(eq=False)
class FailureLog:
    """A log of failures, which sets ``unrecoverable`` after ``limit`` that count within ``window_s``."""

    report: Callable[[ProcessFailure], str]
    limit: int
    window_s: float
    log: Log
    unrecoverable: asyncio.Event

    def __post_init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=self.limit)

    def add(self, failure: ProcessFailure) -> bool:
        """Log a failure; return False once there were too many."""
        try:
            self.log(self.report(failure))
        except Exception as exc:  # noqa: BLE001 - a failure counts, reported or not
            self.log(f"warning: the failure could not be reported: {type(exc).__name__}: {exc}")
        if failure.counts:
            self._times_s.append(time.monotonic())
        if len(self._times_s) == self.limit and self._times_s[-1] - self._times_s[0] <= self.window_s:
            limit = f"{self.limit} failures within {self.window_s:g} s"
            self.log(f"{limit} (FAILURE_LIMIT, FAILURE_WINDOW): giving up")
            self.unrecoverable.set()
        return not self.unrecoverable.is_set()
