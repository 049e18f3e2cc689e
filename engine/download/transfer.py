"""How a download is split over connections, and how often it is retried."""

from __future__ import annotations

from dataclasses import dataclass


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
    longest_retry_after_s: float = 60.0
    """Of the wait that a server asks for."""
    timeout_s: float = 30.0
    """For a connection to open, and without a byte on an open one."""


DEFAULT_TRANSFER = Transfer()
