"""A drill: a process of a loaded server is killed or stopped; its clients and health checks are watched."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenizers import Tokenizer

from engine.machine.processes import state_and_parent
from perf.known_streams import APIS, CLOSED, COG, OPENAI, TRITON, KnownStreams, Stream
from perf.load.http import HttpClient, Request, RequestFailed
from perf.processes import processes
from perf.resources import metrics
from perf.servers import Stack
from runner import probe

TOKENS_PER_SECOND = 25
_TOKENS = (25, 100)
_LAST_TOKENS = 10
_ENDLESS_TOKENS = 10_000
_MOST_TRITON_STREAMS = 4
_LATEST_SIGNAL_S = 2.0
_UNDISTURBED_S = 5.0
_POLL_S = 0.02
_TIMEOUT_S = 300.0
_ANSWER_TIMEOUT_S = 2.0
_EXIT_CODE = 70
"""Of a runner whose Cog worker has ended: Cog can't start another."""
_RUNNING = "cog_triton_slot_running_requests"


class Expected(NamedTuple):
    """What the end of a process costs: the APIs that lose streams, and with which errors (none: any)."""

    loses: Collection[str] = ()
    errors: Collection[str] = ()
    seen_by: Collection[str] = (COG,)
    """APIs whose readiness has to fail until the process is back."""


UNDISTURBED, API_SERVER, WORKER = "undisturbed", "API server", "coglet worker"
ENGINE_CHILD = "engine child"
_TRITON_LOST = Expected([TRITON], seen_by=(COG, TRITON))
_ENGINE_LOST = Expected(APIS, ["E2107"], seen_by=(COG, OPENAI))
EXPECTED = {
    "triton": _TRITON_LOST,
    "stub: tensorrt_llm": _TRITON_LOST,
    "stub: preprocessing": _TRITON_LOST,
    "stub: postprocessing": _TRITON_LOST,
    "engine server": _ENGINE_LOST,
    ENGINE_CHILD: _ENGINE_LOST,
    API_SERVER: Expected([OPENAI], [CLOSED]),
    WORKER: Expected(APIS),
    UNDISTURBED: Expected(),
}
"""By the role of the process."""


@dataclass
class Drill:
    """What happened, and which expectations were ``broken``. Times are seconds since the signal."""

    role: str
    number: signal.Signals | None = None
    streams: list[Stream] = field(default_factory=list)
    """Those that began before all was ready again."""
    gone_s: float | None = None
    """The process has left the process table."""
    seen_s: dict[str, float] = field(default_factory=dict)
    """When the readiness of an API failed first."""
    ready_s: float | None = None
    """All is ready again; of Cog's worker: the runner has ended."""
    broken: list[str] = field(default_factory=list)

    @property
    def ends_server(self) -> bool:
        return self.role == WORKER

    def judge_streams(self) -> None:
        expected = EXPECTED[self.role]
        for stream in self.streams:
            if not stream.is_exact:
                self.broken.append(f"a stream of {stream.api} was not exact ({stream.error or 'completed'})")
            elif stream.error and stream.api not in expected.loses:
                self.broken.append(f"a stream of {stream.api} was lost ({stream.error})")
            elif stream.error and expected.errors and stream.error not in expected.errors:
                self.broken.append(f"a stream of {stream.api} ended with {stream.error}")


class Drills:
    """Drills on one server, one after another. Close it. ``tokenizer``: see KnownStreams."""

    def __init__(
        self, stack: Stack, tokenizer: Tokenizer | None, num_streams: int, chance: random.Random
    ) -> None:
        self._stack = stack
        self._known = KnownStreams(stack, tokenizer)
        self._http = HttpClient(_ANSWER_TIMEOUT_S)
        self._num_streams = {COG: num_streams, OPENAI: num_streams}
        self._num_streams[TRITON] = min(num_streams, _MOST_TRITON_STREAMS)
        self._chance = chance
        # Another engine than a paced one may have no room for them.
        self._endless_tokens = _ENDLESS_TOKENS if tokenizer is not None else _TOKENS[1]
        self._numbers = itertools.count()
        self._drill: Drill
        self._is_ready: dict[str, bool]
        self._goes_on: asyncio.Event
        """All is ready again, or the server has ended."""

    def close(self) -> None:
        self._known.close()
        self._http.close()

    async def run(self, role: str, number: signal.Signals | None = None) -> Drill:
        """Signal a process under load, at a random time; without a ``number`` none."""
        self._drill = drill = Drill(role, number)
        self._is_ready = {}
        self._goes_on = asyncio.Event()
        clients = [
            asyncio.create_task(self._client(api, is_endless=api == OPENAI and role == API_SERVER))
            for api, count in self._num_streams.items()
            for _ in range(count)
        ]
        if number is None:
            await asyncio.sleep(_UNDISTURBED_S)
        else:
            await asyncio.sleep(self._chance.uniform(0, _LATEST_SIGNAL_S))
            await self._signal(role, number)
        self._goes_on.set()
        await asyncio.gather(*clients)
        if not drill.ends_server and not await _comes_true(lambda: self._runs_at_most(0)):
            drill.broken.append("the engine goes on with requests that have ended")
        drill.judge_streams()
        return drill

    async def _client(self, api: str, *, is_endless: bool) -> None:
        """One stream after another. After an error wait, and begin the last one when all is ready again."""
        while self._stack.server.exit_code() is None:
            is_last = self._goes_on.is_set()
            num_tokens = self._endless_tokens if is_endless else self._chance.randint(*_TOKENS)
            prompt = f"{next(self._numbers)} Once upon a time"
            stream = await self._known.request(api, prompt, _LAST_TOKENS if is_last else num_tokens)
            if is_last:
                if stream.error or not stream.is_exact:
                    self._drill.broken.append(f"{api} was ready again, but a stream ended with {stream}")
                return
            self._drill.streams.append(stream)
            if stream.error:
                await self._goes_on.wait()

    async def _signal(self, role: str, number: signal.Signals) -> None:
        """Signal the process, and watch until all is ready again."""
        drill = self._drill
        pid = next(int(each.folder.name) for each in processes(self._stack.session) if each.role == role)
        start_s = time.monotonic()
        watches = [asyncio.create_task(self._watch(api, start_s)) for api in APIS]
        os.kill(pid, number)

        async def is_gone() -> bool:
            return state_and_parent(pid)[0] == "X"

        if await _comes_true(is_gone):
            drill.gone_s = time.monotonic() - start_s
        else:
            drill.broken.append("the process is still there")
        if role == API_SERVER:
            others = self._num_streams[COG] + self._num_streams[TRITON]
            if not await _comes_true(lambda: self._runs_at_most(others)):
                drill.broken.append("the engine goes on with the requests of the API server that has ended")
        if await _comes_true(self._is_over):
            drill.ready_s = time.monotonic() - start_s
        else:
            drill.broken.append(f"not ready again: {self._is_ready}, was not ready: {drill.seen_s}")
        if drill.ends_server and (code := self._stack.server.exit_code()) != _EXIT_CODE:
            drill.broken.append(f"the runner's exit code is {code}")
        for watch in watches:
            watch.cancel()

    async def _is_over(self) -> bool:
        if self._drill.ends_server:
            return self._stack.server.exit_code() is not None
        return all(api in self._drill.seen_s for api in EXPECTED[self._drill.role].seen_by) and all(
            self._is_ready.values()
        )

    async def _watch(self, api: str, start_s: float) -> None:
        """Record when the readiness of an API fails first, and whether it is ready now."""
        while True:
            self._is_ready[api] = await self._asks_ready(api)
            if not self._is_ready[api]:
                self._drill.seen_s.setdefault(api, time.monotonic() - start_s)
            await asyncio.sleep(_POLL_S)

    async def _asks_ready(self, api: str) -> bool:
        if api == COG:  # As `python -m runner.probe ready` does.
            port = int(self._stack.cog_url.rpartition(":")[2])
            return await asyncio.to_thread(probe.status, port) in probe.QUESTIONS["ready"]
        is_openai = api == OPENAI
        url = f"{self._stack.openai_url}/ready" if is_openai else f"{self._stack.triton_url}/v2/health/ready"
        try:
            return (await self._http.send(Request("GET", url, {}))).status == 200
        except RequestFailed:
            return False

    async def _runs_at_most(self, count: int) -> bool:
        """Whether the engine has no more requests than these."""
        found = await asyncio.to_thread(metrics, self._stack.metrics_url)
        return found[_RUNNING] <= count


async def _comes_true(condition: Callable[[], Awaitable[bool]]) -> bool:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not await condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True
