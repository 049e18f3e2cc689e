"""Event streams that are silent for a while, which proxies and clients would close, often after a minute."""

import asyncio
from typing import Protocol

_CHECKS = 10
"""Number of checks in each interval: a stream is silent for at most the interval."""


class Stream(Protocol):
    silent_checks: float
    """Number of checks since the last event, which sets it to 0; minus infinity while one is being sent."""

    async def keep_alive(self) -> None:
        """Send an event without meaning. Called only while the stream is watched."""


class IdleStreams:
    """A task for all streams of the process, as a timer for each would cost as much as a short answer."""

    def __init__(self, interval_s: float) -> None:
        """Initialize. ``interval_s``: 0 for streams that stay silent."""
        self._interval_s = interval_s
        self._streams: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, stream: Stream) -> None:
        if not self._interval_s:
            return
        self._streams.add(stream)
        if self._task is None:
            self._task = asyncio.create_task(self._keep_alive())

    def leave(self, stream: Stream) -> None:
        self._streams.discard(stream)

    async def _keep_alive(self) -> None:
        try:
            while self._streams:
                await asyncio.sleep(self._interval_s / _CHECKS)
                for stream in self._streams:
                    stream.silent_checks += 1
                for stream in [each for each in self._streams if each.silent_checks >= _CHECKS]:
                    if stream in self._streams:
                        await stream.keep_alive()
        finally:
            self._task = None
