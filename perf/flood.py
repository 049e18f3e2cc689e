"""Ten times more clients than places, idle clients and clients that read nothing, for minutes.

    python -m perf flood --seconds 180

Starts the runner on a paced engine, with as many places in Cog as in the OpenAI-compatible API, and sends ten
times as many requests. A refused client tries again a second later. Prints refusals by status, the pace of
accepted streams beside that of a calm time before, memory, and how long the server takes to serve again.
Exit status 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from perf.calls import COG, OPENAI, PATHS, REFUSED, Call, call
from perf.engines import paced_engine
from perf.load.statistics import percentile
from perf.options import Options
from perf.resources import measure, settle
from perf.servers import HOST, Stack, whole_stack

_OVERLOAD = 10
_TOKENS_PER_SECOND = 50
_TOKENS = 100
_RETRY_S = 1.0
_CALM_STREAMS = 16
_RECOVERY_S = 10.0
_MOST_GROWTH_BYTES = 512 << 20


def _stream(api: str, tokens: int) -> Call:
    return call(api, "Once upon a time there was a flood", tokens, is_stream=True)


@dataclass
class Tally:
    """Of one API: answers by status, tokens a second of each stream, and what should not have happened."""

    statuses: Counter[int] = field(default_factory=Counter)
    paces: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Flood:
    """Clients of both APIs that send one request after another."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.tallies: dict[str, Tally] = {}
        self._session: aiohttp.ClientSession

    async def run(self, seconds: float, streams: int) -> None:
        """Have ``streams`` clients of each API send requests for so long."""
        self.tallies = {COG: Tally(), OPENAI: Tally()}
        end_s = time.monotonic() + seconds
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await asyncio.gather(*[self._client(api, end_s) for api in self.tallies for _ in range(streams)])

    async def _client(self, api: str, end_s: float) -> None:
        tally = self.tallies[api]
        while time.monotonic() < end_s:
            try:
                if not await self._served(api, tally):
                    await asyncio.sleep(_RETRY_S)
            except (aiohttp.ClientError, asyncio.TimeoutError) as exc:
                tally.failures[type(exc).__name__] += 1
                await asyncio.sleep(_RETRY_S)

    async def _served(self, api: str, tally: Tally) -> bool:
        """One stream to its end; False if it was refused."""
        request = _stream(api, _TOKENS)
        url = request.url(self._stack)
        async with self._session.post(url, json=request.body, headers=request.headers) as response:
            tally.statuses[response.status] += 1
            if response.status != 200:
                await response.read()
                return False
            times_s: list[float] = []
            last = b""
            async for line in response.content:
                if line.startswith((b"data:", b"event:")):
                    times_s.append(time.monotonic())
                    last = line if line.strip() != b"data: [DONE]" else last
                if b'"error"' in line and b'"error":null' not in line.replace(b" ", b""):
                    tally.failures["error in a stream"] += 1
        tally.paces.append(_TOKENS / (times_s[-1] - times_s[0] + 1 / _TOKENS_PER_SECOND))
        return True


async def _open_silent(port: int, api: str, idle: int, deaf: int) -> list[asyncio.StreamWriter]:
    """Clients that only connect, and clients that request a long stream and read nothing."""
    request = _stream(api, 10_000)
    data = json.dumps(request.body).encode()
    headers = {"Host": HOST, "Content-Type": "application/json", "Content-Length": len(data)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | request.headers).items())
    message = f"POST {PATHS[api]} HTTP/1.1\r\n{lines}\r\n".encode() + data
    writers = [(await asyncio.open_connection(HOST, port, limit=1))[1] for _ in range(idle + deaf)]
    for writer in writers[idle:]:
        writer.write(message)
    return writers


def _tell(name: str, tallies: dict[str, Tally]) -> bool:
    """Print; whether only what is allowed happened."""
    is_right = True
    for api, tally in tallies.items():
        paces = sorted(tally.paces) or [0.0]
        median, worst = percentile(paces, 0.5), percentile(paces, 0.05)
        print(
            f"  {name:<6} {api:<7} answers {dict(tally.statuses)}, streams {len(tally.paces)}, "
            f"tokens/s per stream: median {median:.1f}, 5th percentile {worst:.1f}"
        )
        if tally.failures:
            print(f"    failures: {dict(tally.failures)}")
        is_right &= set(tally.statuses) <= {200, REFUSED[api]} and not tally.failures and bool(tally.paces)
    return is_right


async def _memory_peak(session: int, peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], measure(session).memory_bytes.total())
        await asyncio.sleep(1)


async def _recovery_s(flood: Flood) -> float:
    """Until a stream of each API is served again."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < 6 * _RECOVERY_S:
        await flood.run(0.01, 1)
        if all(tally.statuses[200] for tally in flood.tallies.values()):
            break
    return time.monotonic() - start_s - _TOKENS / _TOKENS_PER_SECOND


async def _flood(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="flood-") as name:
        folder = Path(name)
        settings = {
            "ENGINE_DIR": str(paced_engine(folder, _TOKENS_PER_SECOND)),
            "COG_MAX_CONCURRENCY": str(options.places),
            "OPENAI_MAX_REQUESTS": str(options.places),
        }
        with whole_stack(folder, settings, has_api=True) as stack:
            flood = Flood(stack)
            await flood.run(3, min(_CALM_STREAMS, options.places))
            is_right = _tell("calm", flood.tallies)
            before = measure(stack.session).memory_bytes.total()
            peak = [before]
            sampling = asyncio.create_task(_memory_peak(stack.session, peak))
            cog_port = int(stack.cog_url.rpartition(":")[2])
            silent = [
                writer
                for port, api in ((cog_port, COG), (stack.openai_port, OPENAI))
                for writer in await _open_silent(port, api, options.idle // 2, options.deaf // 2)
            ]
            await flood.run(options.seconds, _OVERLOAD * options.places)
            is_right &= _tell("flood", flood.tallies)
            for writer in silent:
                writer.transport.abort()
            recovery_s = await _recovery_s(flood)
            sampling.cancel()
            growth = peak[0] - before
            print(f"  memory {before >> 20} MiB, at most {growth >> 20} MiB more in the flood")
            print(f"  a stream of each API was served again after {recovery_s:.1f} s")
            is_right &= settle(stack.metrics_url, _RECOVERY_S) and growth < _MOST_GROWTH_BYTES
            is_right &= recovery_s < _RECOVERY_S or options.short
        print("all promises kept" if is_right else "BROKEN")
        return 0 if is_right else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("flood", __doc__)
    parser.add_argument("--places", type=int, default=64, help="of each API")
    parser.add_argument("--seconds", type=float, default=180, help="length of the flood")
    parser.add_argument("--idle", type=int, default=1960, help="clients that send nothing")
    parser.add_argument("--deaf", type=int, default=40, help="clients that read nothing")
    parser.add_argument("--short", action="store_true", help="do not judge the time of recovery")
    return asyncio.run(_flood(parser.parse_args(arguments)))
