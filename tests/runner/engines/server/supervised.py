"""An engine server that the runner's supervisor starts, with the runner's client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.protocol.output import Output
from runner.engines.server.supervisor import EngineCommand, EngineServer
from runner.supervision.failures import ProcessFailure

SUBMIT = Submit(0, [5, 6], 20, Sampling(top_k=1))
LONG = Submit(0, [5], 90_000)
WAIT_S = 240.0


class Supervised:
    """An engine server that runs, with its client and its failures."""

    def __init__(self, command: EngineCommand, client: EngineClient) -> None:
        self.client = client
        self.failures: list[ProcessFailure] = []
        path = command.arrival.parent / "socket"
        self.server = EngineServer(command, path, client, lambda line: None, self._fail)

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
async def supervised(command: EngineCommand) -> AsyncIterator[Supervised]:
    async with EngineClient(command.arrival.parent / "socket", WAIT_S, "paced") as client:
        supervised = Supervised(command, client)
        try:
            await supervised.server.start()
            yield supervised
        finally:
            await supervised.server.stop()


async def exhaust(outputs: AsyncGenerator[Output, None]) -> None:
    async for _ in outputs:
        pass
