"""Client of Triton's HTTP server: metadata, management, metrics and statistics."""

import asyncio
from typing import Any

from errors.triton import TritonUnavailable
from runner.settings.ports import TritonPorts
from runner.supervision.child import within
from runner.supervision.health import HTTPAnswer, request
from runner.triton_server.statistics import statistics_of

_TIMEOUT_S = 30.0
_MAX_AT_ONCE = 16
"""Limit of requests that Triton answers at a time."""


class TritonHTTP:
    def __init__(self, ports: TritonPorts) -> None:
        self._ports = ports
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._reading = asyncio.Lock()
        self._next_metrics: asyncio.Task[HTTPAnswer] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> HTTPAnswer:
        """Return Triton's answer. Raises TritonUnavailable."""
        return await self._ask(method, self._ports.http_url + path, body)

    async def metrics(self) -> HTTPAnswer:
        """Read the metrics; clients that ask during a read share the next one. Raises TritonUnavailable."""
        if self._next_metrics is None:
            self._next_metrics = asyncio.create_task(self._read_metrics())
        return await asyncio.shield(self._next_metrics)

    async def _read_metrics(self) -> HTTPAnswer:
        async with self._reading:
            self._next_metrics = None
            return await self._ask("GET", self._ports.metrics_url)

    async def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """See ``statistics_of``. Raises TritonUnavailable, UnknownTritonModel (E1108)."""
        answer = await self.metrics()
        return statistics_of(answer.content.decode(), model, version)

    async def _ask(self, method: str, url: str, body: bytes = b"") -> HTTPAnswer:
        async with self._turns:
            try:
                return await within(request(method, url, body), _TIMEOUT_S)
            except (OSError, ValueError, asyncio.TimeoutError) as exc:
                raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc
