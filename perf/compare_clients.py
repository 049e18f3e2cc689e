"""CPU that HTTP clients take for the same streams of the mock: the load generator's own and aiohttp.

Of this process alone, in turns, best of three; each client records the time of each piece it receives.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from engine.machine.description import machine
from perf.load.http import HttpClient, Request
from perf.options import Options
from perf.servers import mock
from perf.table import table

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


def main(arguments: Sequence[str] | None = None) -> int:
    Options("compare-clients", __doc__).parse_args(arguments)
    clients: dict[str, Client] = {"perf.load.http": ours, "aiohttp": with_aiohttp}
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
