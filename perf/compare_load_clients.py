"""Compares what HTTP clients cost a load generator: ours, aiohttp and httpx on the same streams of the mock.

    .venv/bin/python perf/compare_load_clients.py

CPU of this process alone, in turns, best of three; every client notes the time of each piece it receives.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
import httpx

from perf.bench.machine import machine
from perf.bench.servers import mock, run_program
from perf.bench.table import table
from perf.load.http import HttpClient, Request

_STREAMS = 24
_TOKENS = 128
_ROUNDS = 3
_BODY = f'{{"input": {{"tps": 100, "n_output_tokens": {_TOKENS}}}}}'.encode()
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}

Pieces = list[tuple[float, bytes]]
Client = Callable[[str], Awaitable[list[Pieces]]]


async def ours(url: str) -> list[Pieces]:
    http = HttpClient(60.0)
    request = Request("POST", url, _HEADERS, _BODY)
    try:
        return [each.pieces for each in await asyncio.gather(*(http.send(request) for _ in range(_STREAMS)))]
    finally:
        http.close()


async def with_aiohttp(url: str) -> list[Pieces]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> Pieces:
            async with session.post(url, data=_BODY, headers=_HEADERS) as response:
                return [(time.perf_counter(), data) async for data in response.content.iter_any()]

        return await asyncio.gather(*(one() for _ in range(_STREAMS)))


async def with_httpx(url: str) -> list[Pieces]:
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=60) as client:

        async def one() -> Pieces:
            async with client.stream("POST", url, content=_BODY, headers=_HEADERS) as response:
                return [(time.perf_counter(), data) async for data in response.aiter_raw()]

        return await asyncio.gather(*(one() for _ in range(_STREAMS)))


def main() -> int:
    clients: dict[str, Client] = {"perf.load.http": ours, "aiohttp": with_aiohttp, "httpx": with_httpx}
    cpu_s: dict[str, list[float]] = {name: [] for name in clients}
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as folder, mock(Path(folder)) as stack:
        for _ in range(_ROUNDS):
            for name, client in clients.items():
                before_s = time.process_time()
                received = asyncio.run(_all(client, f"{stack.cog_url}/predictions"))
                cpu_s[name].append(time.process_time() - before_s)
                assert all(b"event: completed" in b"".join(data for _, data in each) for each in received)
    least_s = {name: min(values) for name, values in cpu_s.items()}
    tokens = _STREAMS * _TOKENS
    rows = [
        [name, f"{value * 1e6 / tokens:.1f} us", f"{value / least_s['perf.load.http']:.2f}x"]
        for name, value in least_s.items()
    ]
    print(f"{machine()}; {_STREAMS} streams of {_TOKENS} tokens\n")
    print(table(["client", "CPU per token", "of ours"], rows))
    return 0


async def _all(client: Client, url: str) -> list[Pieces]:
    return await client(url)


if __name__ == "__main__":
    run_program(main)
