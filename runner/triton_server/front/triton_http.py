"""Client of Triton's HTTP server: metadata, management, metrics and statistics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from errors.triton import TritonUnavailable
from runner.settings.ports import TritonPorts
from runner.triton_server.statistics import statistics_of

_TIMEOUT = aiohttp.ClientTimeout(30.0)
_MAX_AT_ONCE = 16
"""Requests that Triton answers at once."""


@dataclass(frozen=True)
class HTTPAnswer:
    status: int
    content: bytes
    content_type: bytes


class TritonHTTP:
    """Call ``close`` in the end."""

    def __init__(self, ports: TritonPorts) -> None:
        self._ports = ports
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._reading = asyncio.Lock()
        self._next_metrics: asyncio.Task[HTTPAnswer] | None = None

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> HTTPAnswer:
        """Raises TritonUnavailable."""
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
                async with self._session.request(method, url, data=body or None) as response:
                    content = await response.read()
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as exc:
                raise TritonUnavailable(reason=str(exc) or type(exc).__name__) from exc
        content_type = response.headers.get("content-type", "application/json").encode()
        return HTTPAnswer(response.status, content, content_type)
