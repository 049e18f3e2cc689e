"""A drill: a process of a loaded server is killed or stopped; its clients and health checks are watched."""

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
from perf.known_streams import APIS, CLOSED, COG, OPENAI, TRITON, KnownStream, KnownStreams
from perf.processes import processes
from perf.resources import answers_ok, metrics
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
_EXIT_CODE = 70
"""Of a runner whose Cog worker has ended: Cog can't start another."""


class Expected(NamedTuple):
    """What the end of a process costs: the APIs that lose streams, and with which errors (none: any)."""

    loses: Collection[str] = ()
    errors: Collection[str] = ()
    seen_by: Collection[str] = (COG,)
    """APIs whose readiness has to fail until the process is back."""


UNDISTURBED, API_SERVER, WORKER = "undisturbed", "API server", "coglet worker"
ENGINE_CHILD = "engine child"
_TRITON = ("triton", "stub: tensorrt_llm", "stub: preprocessing", "stub: postprocessing")
EXPECTED = {
    **dict.fromkeys(_TRITON, Expected([TRITON], seen_by=(COG, TRITON))),
    **dict.fromkeys(("engine server", ENGINE_CHILD), Expected(APIS, ["E2107"], seen_by=(COG, OPENAI))),
    API_SERVER: Expected([OPENAI], [CLOSED]),
    "Triton front": Expected([TRITON], [CLOSED]),
    WORKER: Expected(APIS),
    UNDISTURBED: Expected(),
}
"""By the role of the process."""


def difference(role: str, stream: KnownStream) -> str:
    """What is not as expected of a stream when the process ends; blank if all is."""
    expected = EXPECTED[role]
    if not stream.is_exact:
        return f"a stream of {stream.api} was not exact ({stream.error or 'completed'})"
    if stream.error and stream.api not in expected.loses:
        return f"a stream of {stream.api} was lost ({stream.error})"
    if stream.error and expected.errors and stream.error not in expected.errors:
        return f"a stream of {stream.api} ended with {stream.error}"
    return ""


@dataclass
class Drill:
    """One drill, and what happened. Times are seconds since the signal. ``tokenizer``: see KnownStreams."""

    stack: Stack
    tokenizer: Tokenizer | None
    num_streams: int
    chance: random.Random
    role: str
    number: signal.Signals | None
    """None: no process is signalled."""
    streams: list[KnownStream] = field(default_factory=list)
    """Those that began before all was ready again."""
    gone_s: float | None = None
    """The process has left the process table."""
    seen_s: dict[str, float] = field(default_factory=dict)
    """When the readiness of an API failed first."""
    ready_s: float | None = None
    """All is ready again; of Cog's worker: the runner has ended."""
    broken: list[str] = field(default_factory=list)
    """Expectations."""

    def __post_init__(self) -> None:
        self.ends_server = self.role == WORKER
        self._numbers = itertools.count()
        self._known = KnownStreams(self.stack, self.tokenizer)
        self._start_s = 0.0
        self._is_ready: dict[str, bool] = {}
        self._goes_on = asyncio.Event()
        """All is ready again, or the server has ended."""

    async def run(self) -> None:
        """Signal the process under load, at a random time."""
        loads = [COG, OPENAI] * self.num_streams + [TRITON] * min(self.num_streams, _MOST_TRITON_STREAMS)
        clients = [asyncio.create_task(self._client(api)) for api in loads]
        if self.number is None:
            await asyncio.sleep(_UNDISTURBED_S)
        else:
            await asyncio.sleep(self.chance.uniform(0, _LATEST_SIGNAL_S))
            await self._signal(self.number, len(loads) - self.num_streams)
        self._goes_on.set()
        await asyncio.gather(*clients)
        if not self.ends_server:
            await self._wait(
                lambda: self._runs_at_most(0), "the engine goes on with requests that have ended"
            )
        self.broken += filter(None, (difference(self.role, each) for each in self.streams))
        self._known.close()

    async def _client(self, api: str) -> None:
        """One stream after another. After an error wait, and begin the last one when all is ready again."""
        # Another engine than a paced one may have no room for endless streams.
        is_endless = self.tokenizer is not None and api == OPENAI and self.role == API_SERVER
        while self.stack.server.exit_code() is None:
            is_last = self._goes_on.is_set()
            num_tokens = _ENDLESS_TOKENS if is_endless else self.chance.randint(*_TOKENS)
            prompt = f"{next(self._numbers)} Once upon a time"
            stream = await self._known.request(api, prompt, _LAST_TOKENS if is_last else num_tokens)
            if is_last:
                if stream.error or not stream.is_exact:
                    self.broken.append(f"{api} was ready again, but a stream ended with {stream}")
                return
            self.streams.append(stream)
            if stream.error:
                await self._goes_on.wait()

    async def _signal(self, number: signal.Signals, others: int) -> None:
        """Signal the process, and watch until all is ready again. ``others``: streams not by the API."""
        found = processes(self.stack.session)
        pid = next(int(each.folder.name) for each in found if each.role == self.role)
        self._start_s = time.monotonic()
        watches = [asyncio.create_task(self._watch(api)) for api in APIS]
        os.kill(pid, number)

        async def is_gone() -> bool:
            return state_and_parent(pid)[0] == "X"

        self.gone_s = await self._wait(is_gone, "the process is still there")
        if self.role == API_SERVER:
            what = "the engine goes on with the requests of the API server that has ended"
            await self._wait(lambda: self._runs_at_most(others), what)
        self.ready_s = await self._wait(self._is_over, "not ready again")
        if self.ends_server and (code := self.stack.server.exit_code()) != _EXIT_CODE:
            self.broken.append(f"the runner's exit code is {code}")
        for watch in watches:
            watch.cancel()

    async def _wait(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> float | None:
        """Wait until the condition holds; seconds since the signal. ``otherwise``: what is broken if not."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not await condition():
            if time.monotonic() > deadline_s:
                states = f"ready now: {self._is_ready}, was not ready: {self.seen_s}"
                self.broken.append(f"{otherwise} ({states})")
                return None
            await asyncio.sleep(_POLL_S)
        return time.monotonic() - self._start_s

    async def _is_over(self) -> bool:
        if self.ends_server:
            return self.stack.server.exit_code() is not None
        return self.seen_s.keys() >= set(EXPECTED[self.role].seen_by) and all(self._is_ready.values())

    async def _watch(self, api: str) -> None:
        """Record when the readiness of an API fails first, and whether it is ready now."""
        port = int(self.stack.server.url.rpartition(":")[2])
        urls = {OPENAI: f"{self.stack.openai_url}/ready", TRITON: f"{self.stack.triton_url}/v2/health/ready"}
        while True:
            if api == COG:  # As `python -m runner.probe ready` does.
                is_ready = await asyncio.to_thread(probe.status, port) in probe.QUESTIONS["ready"]
            else:
                is_ready = await asyncio.to_thread(answers_ok, urls[api])
            self._is_ready[api] = is_ready
            if not is_ready:
                self.seen_s.setdefault(api, time.monotonic() - self._start_s)
            await asyncio.sleep(_POLL_S)

    async def _runs_at_most(self, count: int) -> bool:
        """Whether the engine has no more requests than these."""
        found = await asyncio.to_thread(metrics, self.stack.metrics_url)
        return found["cog_triton_slot_running_requests"] <= count
