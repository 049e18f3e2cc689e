"""How a download is split over connections, and how often it is retried."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from engine.download.http import Temporary


@dataclass(frozen=True)
class Transfer:
    """The defaults hold 100 MiB."""

    connections: int = 8
    """Servers often limit the bandwidth of each connection."""
    head_bytes: int = 256 << 10
    """Of the first request: enough for the manifest, so that a cached engine needs no second request."""
    part_bytes: int = 10 << 20
    """Of every later request."""
    parts_in_memory: int = 10
    attempts: int = 6
    """In a row that bring no byte; then it fails."""
    first_wait_s: float = 0.25
    """Doubles with each attempt."""
    longest_wait_s: float = 10.0
    timeout_s: float = 30.0
    """For a connection to open, and without a byte on an open one."""


DEFAULT_TRANSFER = Transfer()


class Patience:
    """Waits between attempts, longer each time, until there have been too many."""

    def __init__(self, transfer: Transfer, stop: threading.Event) -> None:
        self._transfer = transfer
        self._stop = stop
        self._failures = 0

    def reset(self) -> None:
        """There was progress: failures count from one again."""
        self._failures = 0

    def wait(self, failure: Temporary) -> None:
        """Before the next attempt; raises the failure's error if that was the last."""
        self._failures += 1
        if self._failures >= self._transfer.attempts or self._stop.is_set():
            raise failure.error from failure
        wait_s = min(self._transfer.first_wait_s * 2 ** (self._failures - 1), self._transfer.longest_wait_s)
        self._stop.wait(max(wait_s, failure.retry_after_s))
