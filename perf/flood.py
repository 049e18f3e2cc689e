"""A flood: ten times more clients than places, idle ones and ones that read nothing, for minutes.

    .venv/bin/python perf/flood.py --seconds 180

Starts the runner on a paced engine with as many places in Cog as in the OpenAI-compatible API,
then asks for ten times that. Who is refused asks again a second later. Meanwhile some clients hold
connections without a word, and some ask for long streams and read nothing. Prints refusals by status, the
pace of accepted streams beside that of a calm time before, memory, and how long the server takes to serve
again. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.bench.engines import paced_engine
from perf.bench.servers import HOST, run_program, starting_stack
from perf.soak_resources import measure, settle
from runner.settings.ports import free_ports

_OVERLOAD = 10
_TOKENS_PER_SECOND = 50
_TOKENS = 100
_READY_TIMEOUT_S = 300.0
_RETRY_S = 1.0
_CALM_STREAMS = 16
_RECOVERY_S = 10.0
_MOST_GROWTH_BYTES = 512 << 20
_MODEL = "paced"
_PROMPT = "Once upon a time there was a flood"
_ALLOWED = {"cog": {200, 409}, "openai": {200, 429}}


@dataclass
class Tally:
    """Of one API: answers by status, tokens a second of each stream, and what should not have happened."""

    statuses: Counter[int] = field(default_factory=Counter)
    paces: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Flood:
    def __init__(self, cog_url: str, openai_url: str) -> None:
        self._urls = {"cog": f"{cog_url}/predictions", "openai": f"{openai_url}/v1/completions"}
        self.tallies = {"cog": Tally(), "openai": Tally()}
        self._session: aiohttp.ClientSession

    async def run(self, seconds: float, streams: int) -> None:
        """Have ``streams`` clients of each API ask again and again, for so long."""
        self.tallies = {"cog": Tally(), "openai": Tally()}
        end_s = time.monotonic() + seconds
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await asyncio.gather(*[self._client(api, end_s) for api in self._urls for _ in range(streams)])

    async def _client(self, api: str, end_s: float) -> None:
        tally = self.tallies[api]
        while time.monotonic() < end_s:
            try:
                if not await self._ask(api, tally):
                    await asyncio.sleep(_RETRY_S)
            except (aiohttp.ClientError, asyncio.TimeoutError) as exc:
                tally.failures[type(exc).__name__] += 1
                await asyncio.sleep(_RETRY_S)

    async def _ask(self, api: str, tally: Tally) -> bool:
        """One stream to its end; False if it was refused."""
        body, headers = stream_request(api, _TOKENS)
        async with self._session.post(self._urls[api], json=body, headers=headers) as response:
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


def stream_request(api: str, tokens: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a request for a stream."""
    inputs = {"prompt": _PROMPT, "max_tokens": tokens}
    if api == "cog":
        return {"input": inputs}, {"Accept": "text/event-stream"}
    return {"model": _MODEL, "stream": True, **inputs}, {}


class Silent:
    """Clients that only connect, and clients that ask for a long stream and read nothing."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, port: int, api: str, idle: int, deaf: int) -> None:
        path = "/predictions" if api == "cog" else "/v1/completions"
        body, headers = stream_request(api, 10_000)
        data = json.dumps(body).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        for index in range(idle + deaf):
            _, writer = await asyncio.open_connection(HOST, port, limit=1)
            if index >= idle:
                writer.write(request)
            self._writers.append(writer)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


def _tell(name: str, tallies: dict[str, Tally]) -> bool:
    """Print; whether only what is allowed happened."""
    is_right = True
    for api, tally in tallies.items():
        paces = sorted(tally.paces) or [0.0]
        median, worst = statistics.median(paces), paces[len(paces) // 20]
        print(
            f"  {name:<6} {api:<7} answers {dict(tally.statuses)}, streams {len(tally.paces)}, "
            f"tokens/s per stream: median {median:.1f}, 5th percentile {worst:.1f}"
        )
        if tally.failures:
            print(f"    failures: {dict(tally.failures)}")
        is_right &= set(tally.statuses) <= _ALLOWED[api] and not tally.failures and bool(tally.paces)
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


async def _main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="flood-") as name:
        folder = Path(name)
        openai_port, metrics_port = free_ports(2)
        extra = {
            "ENGINE_DIR": str(paced_engine(folder, _TOKENS_PER_SECOND)),
            "COG_WEIGHTS": "",
            "COG_MAX_CONCURRENCY": str(options.places),
            "OPENAI_PORT": str(openai_port),
            "OPENAI_MODELS": _MODEL,
            "OPENAI_MAX_REQUESTS": str(options.places),
            "TRITON_METRICS_PORT": str(metrics_port),
        }
        with starting_stack(folder, extra) as server:
            server.wait_ready(_READY_TIMEOUT_S)
            flood = Flood(server.url, f"http://{HOST}:{openai_port}")
            await flood.run(3, min(_CALM_STREAMS, options.places))
            is_right = _tell("calm", flood.tallies)
            before = measure(server.pid).memory_bytes.total()
            peak = [before]
            sampling = asyncio.create_task(_memory_peak(server.pid, peak))
            silent = Silent()
            cog_port = int(server.url.rpartition(":")[2])
            await silent.open(cog_port, "cog", options.idle // 2, options.deaf // 2)
            await silent.open(openai_port, "openai", options.idle // 2, options.deaf // 2)
            await flood.run(options.seconds, _OVERLOAD * options.places)
            is_right &= _tell("flood", flood.tallies)
            silent.close()
            recovery_s = await _recovery_s(flood)
            sampling.cancel()
            growth = peak[0] - before
            print(f"  memory {before >> 20} MiB, at most {growth >> 20} MiB more in the flood")
            print(f"  a stream of each API was served again after {recovery_s:.1f} s")
            is_settled = settle(metrics_port, _RECOVERY_S)
            is_right &= (
                is_settled and (recovery_s < _RECOVERY_S or options.short) and growth < _MOST_GROWTH_BYTES
            )
        print("all promises kept" if is_right else "BROKEN")
        return 0 if is_right else 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--places", type=int, default=64, help="of each API (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=180, help="of flood (default %(default)s)")
    parser.add_argument(
        "--idle", type=int, default=1960, help="clients that are silent (default %(default)s)"
    )
    parser.add_argument("--deaf", type=int, default=40, help="clients that don't read (default %(default)s)")
    parser.add_argument("--short", action="store_true", help="the time of recovery is not judged")
    return asyncio.run(_main(parser.parse_args(arguments)))


if __name__ == "__main__":
    run_program(main)
