"""A drill: a process of a loaded server is killed or stopped; its clients and health checks are watched."""

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import NamedTuple

import urllib3

from engine.machine.processes import session_members, state_and_parent
from perf.processes import processes
from perf.servers import Stack
from runner import probe
from tests.runner.long_runs.known_streams import APIS, CLOSED, COG, OPENAI, TRITON, KnownStream, KnownStreams
from tests.runner.long_runs.resources import counters

TOKENS_PER_SECOND = 25
_STREAMS = 8
"""Streams of each API; of Triton half as many."""
_TOKENS = (25, 100)
_LAST_TOKENS = 10
_ENDLESS_TOKENS = 10_000
_LATEST_SIGNAL_S = 2.0
_POLL_S = 0.02
_TIMEOUT_S = 300.0
_EXIT_CODE = 70
"""Exit code of a runner whose Cog worker has ended: Cog can't start another."""
_KEPT = {"metrics"}
"""Folders of what is kept about processes that have ended."""


class Expected(NamedTuple):
    """What the end of a process costs: the APIs that lose streams, and with which errors (none: any)."""

    loses: Collection[str] = ()
    errors: Collection[str] = ()
    seen_by: Collection[str] = (COG,)
    """APIs whose readiness has to fail until the process is back."""


API_SERVER, WORKER = "API server", "coglet worker"
_TRITON = ("triton", "stub: tensorrt_llm", "stub: preprocessing", "stub: postprocessing")
EXPECTED = {
    **dict.fromkeys(_TRITON, Expected([TRITON], seen_by=(COG, TRITON))),
    "engine server": Expected(APIS, ["E2107"], seen_by=(COG, OPENAI)),
    API_SERVER: Expected([OPENAI], [CLOSED]),
    "Triton front": Expected([TRITON], [CLOSED]),
    WORKER: Expected(APIS),
}
"""What is expected, by the role of the process."""


def difference(role: str, stream: KnownStream) -> str:
    """Return what is not as expected of a stream when the process ends; blank if all is."""
    expected = EXPECTED[role]
    if not stream.is_exact:
        return f"a stream of {stream.api} was not exact ({stream.error or 'completed'})"
    if stream.error and stream.api not in expected.loses:
        return f"a stream of {stream.api} was lost ({stream.error})"
    if stream.error and expected.errors and stream.error not in expected.errors:
        return f"a stream of {stream.api} ended with {stream.error}"
    return ""


class Drill:
    """One drill, and what happened."""

    def __init__(self, stack: Stack, engine: Path, role: str, number: signal.Signals) -> None:
        self.broken: list[str] = []
        """Expectations."""
        self.streams: list[KnownStream] = []
        """Streams that began before all was ready again."""
        self._stack = stack
        self._role = role
        self._number = number
        self._known = KnownStreams(stack, engine)
        self._counters = counters(stack.metrics_url)
        self._chance = random.Random(0)
        self._numbers = itertools.count()
        self._failed: set[str] = set()
        """APIs whose readiness has failed."""
        self._is_ready: dict[str, bool] = {}
        self._goes_on = asyncio.Event()
        """All is ready again, or the server has ended."""

    async def run(self) -> None:
        """Signal the process under load, at a random time."""
        loads = [COG, OPENAI] * _STREAMS + [TRITON] * (_STREAMS // 2)
        clients = [asyncio.create_task(self._client(api)) for api in loads]
        await asyncio.sleep(self._chance.uniform(0, _LATEST_SIGNAL_S))
        await self._signal(len(loads) - _STREAMS)
        self._goes_on.set()
        await asyncio.gather(*clients)
        if self._role != WORKER:
            await self._wait(
                lambda: self._runs_at_most(0), "the engine goes on with requests that have ended"
            )
        self.broken += filter(None, (difference(self._role, each) for each in self.streams))
        self._known.close()
        self._counters.close()

    async def _client(self, api: str) -> None:
        """Send one stream after another; after an error, the last one when all is ready again."""
        is_endless = api == OPENAI and self._role == API_SERVER
        while self._stack.server.exit_code() is None:
            is_last = self._goes_on.is_set()
            num_tokens = _ENDLESS_TOKENS if is_endless else self._chance.randint(*_TOKENS)
            prompt = f"{next(self._numbers)} Once upon a time"
            stream = await self._known.request(api, prompt, _LAST_TOKENS if is_last else num_tokens)
            if is_last:
                if stream.error or not stream.is_exact:
                    self.broken.append(f"{api} was ready again, but a stream ended with {stream}")
                return
            self.streams.append(stream)
            if stream.error:
                await self._goes_on.wait()

    async def _signal(self, others: int) -> None:
        """Signal the process, and watch until all is ready again. ``others``: streams not by the API."""
        found = processes(self._stack.session)
        pid = next(int(each.folder.name) for each in found if each.role == self._role)
        watches = [asyncio.create_task(self._watch(api)) for api in APIS]
        os.kill(pid, self._number)

        async def is_gone() -> bool:
            return state_and_parent(pid)[0] == "X"

        await self._wait(is_gone, "the process is still there")
        if self._role == API_SERVER:
            what = "the engine goes on with the requests of the API server that has ended"
            await self._wait(lambda: self._runs_at_most(others), what)
        await self._wait(self._is_over, "not ready again")
        if self._role == WORKER and (code := self._stack.server.exit_code()) != _EXIT_CODE:
            self.broken.append(f"the runner's exit code is {code}")
        for watch in watches:
            watch.cancel()

    async def _wait(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        """Wait until the condition holds. ``otherwise``: what is broken if it doesn't."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not await condition():
            if time.monotonic() > deadline_s:
                states = f"ready now: {self._is_ready}, was not ready: {self._failed}"
                self.broken.append(f"{otherwise} ({states})")
                return
            await asyncio.sleep(_POLL_S)

    async def _is_over(self) -> bool:
        if self._role == WORKER:
            return self._stack.server.exit_code() is not None
        return self._failed >= set(EXPECTED[self._role].seen_by) and all(self._is_ready.values())

    async def _watch(self, api: str) -> None:
        """Record whether the readiness of an API has failed, and whether it is ready now."""
        port = int(self._stack.server.url.rpartition(":")[2])
        urls = {
            OPENAI: f"{self._stack.openai_url}/ready",
            TRITON: f"{self._stack.triton_url}/v2/health/ready",
        }
        while True:
            if api == COG:  # As `python -m runner.probe ready` does.
                is_ready = await asyncio.to_thread(probe.status, port) in probe.QUESTIONS["ready"]
            else:
                is_ready = await asyncio.to_thread(_answers_ok, urls[api])
            self._is_ready[api] = is_ready
            if not is_ready:
                self._failed.add(api)
            await asyncio.sleep(_POLL_S)

    async def _runs_at_most(self, count: int) -> bool:
        """Return True if the engine has no more requests than these."""
        return await asyncio.to_thread(lambda: self._counters.running) <= count


def _answers_ok(url: str) -> bool:
    try:
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def left_behind(stack: Stack, folder: Path, files: set[Path]) -> list[str]:
    """Return what an ended server left, but for ``files`` that it had when it was ready."""
    found = [f"process {pid}" for pid in session_members(stack.session)]
    found += map(str, Path("/dev/shm").glob(f"cog_triton_*_{stack.triton_port}_*"))
    return found + [str(each) for each in files_in(folder) - files]


def files_in(folder: Path) -> set[Path]:
    """Return all files but those that are kept on purpose."""
    return {path for path in folder.rglob("*") if not path.is_dir() and _KEPT.isdisjoint(path.parts)}
