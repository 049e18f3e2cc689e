"""Kill and stop each process of a loaded server, and tell how soon it is noticed, told and over.

    .venv/bin/python perf/rehearse_faults.py

Prints for each victim: how long its requests waited for their error, when the health turned red, when it was
ready again, and what the requests got. The load is 16 streams through Cog on the paced engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.bench.engines import paced_engine
from perf.bench.processes import role_of
from perf.bench.servers import run_program, starting_stack

_STREAMS = 16
_TOKENS_PER_SECOND = 50
_VICTIMS = ("triton", "stub: tensorrt_llm", "stub: preprocessing", "engine worker")
_READY_TIMEOUT_S = 300.0
_POLL_S = 0.02


async def _status(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(f"{url}/health-check") as response:
        return str((await response.json())["status"])


async def _when(http: aiohttp.ClientSession, url: str, wanted: Callable[[str], bool]) -> float:
    """The time at which the health is as wanted."""
    deadline_s = time.monotonic() + 60
    while not wanted(await _status(http, url)):
        if time.monotonic() > deadline_s:
            return float("inf")
        await asyncio.sleep(_POLL_S)
    return time.monotonic()


async def _ask(http: aiohttp.ClientSession, url: str) -> tuple[float, str]:
    """When a long prediction ended, and with which code."""
    body = {"input": {"prompt": "Once upon a time", "max_tokens": 10_000}}
    async with http.post(f"{url}/predictions", json=body) as response:
        document = await response.json()
    error = str(document.get("error") or "")
    return time.monotonic(), error[error.find("E2") :][:5] if "E2" in error else document["status"]


def _find(session: int, role: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It ended while we looked.
        if int(fields[3]) == session and role_of(command) == role:
            return int(folder.name)
    raise LookupError(role)


async def _rehearse(url: str, session: int, role: str, number: signal.Signals) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as http:
        asked = [asyncio.create_task(_ask(http, url)) for _ in range(_STREAMS)]
        await asyncio.sleep(2)
        start_s = time.monotonic()
        os.kill(_find(session, role), number)
        red_s = await _when(http, url, lambda status: status == "UNHEALTHY") - start_s
        ends = await asyncio.gather(*asked)
        ready_s = await _when(http, url, lambda status: status == "READY") - start_s
        told_s = max(at_s for at_s, _ in ends) - start_s
        codes = dict(Counter(code for _, code in ends))
        print(
            f"| {role} | {number.name} | {told_s:.2f} | {red_s:.2f} | {ready_s:.2f} | {codes} |", flush=True
        )


async def _main() -> None:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        engine = paced_engine(folder, _TOKENS_PER_SECOND)
        extra = {"ENGINE_DIR": str(engine), "COG_WEIGHTS": "", "FAILURE_LIMIT": "1000"}
        with starting_stack(folder, extra) as server:
            server.wait_ready(_READY_TIMEOUT_S)
            print("| victim | signal | requests told, s | health red, s | READY again, s | what they got |")
            print("| --- | --- | --- | --- | --- | --- |")
            for role in _VICTIMS:
                for number in (signal.SIGKILL, signal.SIGSTOP):
                    await _rehearse(server.url, server.pid, role, number)


if __name__ == "__main__":
    run_program(lambda: asyncio.run(_main()))
