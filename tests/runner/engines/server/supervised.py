"""An engine server that the runner's supervisor starts, with the runner's client of it."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Output, Sampling, Submit
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import EngineServer
from runner.supervision.failures import ProcessFailure
from runner.supervision.supervised import ProcessState, SupervisedProcess

SUBMIT = Submit(0, [5, 6], 20, Sampling(top_k=1))
LONG = Submit(0, [5], 90_000)
WAIT_S = 240.0


class Supervised:
    def __init__(
        self, start: EngineStart, client: EngineClient, python: str, start_timeout_s: float = 1800.0
    ) -> None:
        self.client = client
        self.failures: list[ProcessFailure] = []
        self.server = EngineServer(
            python,
            start,
            start.arrival.parent / "socket",
            client,
            lambda line: None,
            self._fail,
            start_timeout_s=start_timeout_s,
        )

    def _fail(self, failure: ProcessFailure) -> bool:
        self.failures.append(failure)
        return True

    async def answer(self) -> list[int]:
        return [token async for output in self.client.generate(SUBMIT) for token in output.tokens]

    async def until(self, pid: int) -> None:
        """Wait until another process than this one serves."""
        while self.server.pid in (pid, None) or not self.client.is_ready:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.01)


@asynccontextmanager
async def supervised(
    start: EngineStart, python: str = sys.executable, **more: float
) -> AsyncIterator[Supervised]:
    async with EngineClient(start.arrival.parent / "socket", WAIT_S, "paced") as client:
        supervised = Supervised(start, client, python, **more)
        try:
            supervised.server.begin()
            await supervised.server.wait_ready()
            yield supervised
        finally:
            await supervised.server.stop()


async def next_look(process: SupervisedProcess) -> None:
    """Wait until the supervisor has looked whether what starts waits: its time to start begins again.

    Or until it has started.
    """
    look, looked = process.is_waiting, asyncio.Event()

    def watched() -> bool:
        looked.set()
        return look()

    process.is_waiting = watched
    while not looked.is_set() and process.state is ProcessState.STARTING:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def exhaust(outputs: AsyncGenerator[Output, None]) -> None:
    async for _ in outputs:
        pass
