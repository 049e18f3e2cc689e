"""Failures of what we supervise: what is told of one, its likely cause, and when they are too many."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
    "SIGKILL": "somebody killed it: an operator, or the kernel of a machine without memory",
    "SIGTERM": "somebody ended it",
}


@dataclass(frozen=True)
class Failure:
    """Something died or hung. ``part`` is what: triton, triton start or engine."""

    part: str
    reason: str
    log_tail: tuple[str, ...]


def oom_kills() -> int:
    """How many processes of this container the kernel killed for memory; 0 where it doesn't tell."""
    try:
        events = dict(line.split() for line in _CGROUP_EVENTS.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(events.get("oom_kill", 0))


def likely_cause(failure: Failure, new_oom_kills: int) -> str:
    """In words, from the surest sign to the least."""
    if new_oom_kills:
        return "memory was full: the kernel killed a process of this container"
    if "SIGSTOP" in failure.reason or "did not answer" in failure.reason or "hangs" in failure.reason:
        return "it hung"
    lines = (failure.reason, *reversed(failure.log_tail))
    for pattern, cause in _LOG_CAUSES:
        if any(map(pattern.search, lines)):
            return f"{cause}: {_first(pattern, lines)[:300]}"
    return next((cause for name, cause in _SIGNAL_CAUSES.items() if name in failure.reason), "unknown")


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    return next(line for line in lines if pattern.search(line)).strip()


class FailureLimit:
    """``count`` failures within ``window_s`` seconds are too many."""

    def __init__(self, count: int, window_s: float) -> None:
        self.count = count
        self.window_s = window_s
        self._times_s: deque[float] = deque(maxlen=count)

    def is_reached(self) -> bool:
        """Count one more now; whether that was one too many."""
        now_s = time.monotonic()
        self._times_s.append(now_s)
        return len(self._times_s) == self.count and now_s - self._times_s[0] <= self.window_s
