"""Client of Triton's HTTP server: metadata, management and metrics, and the statistics made of them."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import aiohttp

from errors.triton import TritonUnavailable
from errors.triton_front import UnknownTritonModel
from runner.settings.ports import TritonPorts

_TIMEOUT = aiohttp.ClientTimeout(30.0)
_MAX_AT_ONCE = 16
"""Requests that Triton answers at once."""
_COUNTER = re.compile(
    r'^nv_inference_(\w+)\{model="([^"]*)",(?:reason="\w*",)?version="([^"]*)"\} ([0-9.e+]+)$', re.MULTILINE
)
_DURATIONS = {
    "success": "request",
    "queue": "queue",
    "compute_input": "compute_input",
    "compute_infer": "compute_infer",
    "compute_output": "compute_output",
}
"""Triton's statistics, and the metric that has the sum of each."""


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

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> HTTPAnswer:
        """Raises TritonUnavailable."""
        return await self._ask(method, self._ports.http_url + path, body)

    async def metrics(self, method: str = "GET") -> HTTPAnswer:
        """Raises TritonUnavailable."""
        return await self._ask(method, self._ports.metrics_url)

    async def statistics(self, model: str = "", version: str = "") -> list[dict[str, Any]]:
        """Of one model, or of all, by name; raises TritonUnavailable, UnknownTritonModel (E1108).

        NOTE: not Triton's own: 2.51 corrupts its memory if they are read while a stream is longer than all
        before it.
        """
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


def statistics_of(metrics: str, model: str = "", version: str = "") -> list[dict[str, Any]]:
    """Triton's statistics of models, as its HTTP API writes them, from its metrics.

    Metrics have no times of failures, no statistics by batch or by response, and not when a model last ran.
    """
    models: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for counter, *key, value in _COUNTER.findall(metrics):
        models[key[0], key[1]][counter] += float(value)
    if not models:
        raise TritonUnavailable(reason="its metrics name no model")
    found = [each for each in sorted(models) if model in ("", each[0]) and version in ("", each[1])]
    if not found:
        names = ", ".join(sorted({name for name, _ in models}))
        called = f"{model}/versions/{version}" if version else model
        raise UnknownTritonModel(model=called, remedy=f"use one of: {names}")
    return [_statistics(*each, models[each]) for each in found]


def _statistics(name: str, version: str, counters: defaultdict[str, float]) -> dict[str, Any]:
    num_successes = int(counters["request_success"])
    inference_stats = {
        each: {"count": num_successes, "ns": int(counters[f"{metric}_duration_us"] * 1000)}
        for each, metric in _DURATIONS.items()
    }
    inference_stats["fail"] = {"count": int(counters["request_failure"]), "ns": 0}
    return {
        "name": name,
        "version": version,
        "last_inference": 0,
        "inference_count": int(counters["count"]),
        "execution_count": int(counters["exec_count"]),
        "inference_stats": {
            **inference_stats,
            **{each: {"count": 0, "ns": 0} for each in ("cache_hit", "cache_miss")},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
