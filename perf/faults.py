"""Kill and stop each process of a loaded server; measure detection and recovery.

Prints for each process: how long its requests waited for their error, when the health check failed, when it
was READY again, and how the requests ended. The load is 16 streams of Cog on the paced engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from perf.engines import paced_engine
from perf.options import Options
from perf.processes import processes
from perf.servers import Stack, whole_stack
from perf.table import table

_STREAMS = 16
_TOKENS_PER_SECOND = 50
_ROLES = ("triton", "stub: tensorrt_llm", "stub: preprocessing", "engine worker")
_POLL_S = 0.02
_HEAD = ("process", "signal", "requests ended, s", "UNHEALTHY, s", "READY again, s", "outcomes")


async def _when(http: aiohttp.ClientSession, stack: Stack, wanted: str) -> float:
    """The time at which the health check says ``wanted``."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        async with http.get(f"{stack.cog_url}/health-check") as response:
            if (await response.json())["status"] == wanted:
                return time.monotonic()
        await asyncio.sleep(_POLL_S)
    return float("inf")


async def _predict(http: aiohttp.ClientSession, stack: Stack) -> tuple[float, str]:
    """When a long prediction ended, and with which code."""
    inputs = {"prompt": "Once upon a time", "max_tokens": 10_000}
    async with http.post(f"{stack.cog_url}/predictions", json={"input": inputs}) as response:
        document = await response.json()
    error = str(document.get("error") or "")
    return time.monotonic(), error[error.find("E2") :][:5] if "E2" in error else document["status"]


async def _rehearse(stack: Stack, role: str, number: signal.Signals) -> list[str]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as http:
        predictions = [asyncio.create_task(_predict(http, stack)) for _ in range(_STREAMS)]
        await asyncio.sleep(2)
        start_s = time.monotonic()
        victim = next(each for each in processes(stack.session) if each.role == role)
        os.kill(int(victim.folder.name), number)
        red_s = await _when(http, stack, "UNHEALTHY") - start_s
        ends = await asyncio.gather(*predictions)
        ready_s = await _when(http, stack, "READY") - start_s
        ended_s = max(at_s for at_s, _ in ends) - start_s
    codes = dict(Counter(code for _, code in ends))
    return [role, number.name, f"{ended_s:.2f}", f"{red_s:.2f}", f"{ready_s:.2f}", str(codes)]


async def _faults() -> int:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        engine = paced_engine(Path(name), _TOKENS_PER_SECOND)
        with whole_stack(Path(name), {"ENGINE_DIR": str(engine), "FAILURE_LIMIT": "1000"}) as stack:
            rows = []
            for role in _ROLES:
                for number in (signal.SIGKILL, signal.SIGSTOP):
                    rows.append(await _rehearse(stack, role, number))
                    print(table(_HEAD, rows[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(_HEAD, rows)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    Options("faults", __doc__).parse_args(arguments)
    return asyncio.run(_faults())
