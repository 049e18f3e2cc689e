"""A runner for a real coglet that streams by ``runner.cog_server`` alone; ``prompt`` names what it does."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator

import cog
from cog import BaseRunner, ConcatenateIterator

from errors.settings import InvalidSetting
from runner.cog_server.coglet import check_coglet, prediction_id, prepare_run, shown_error
from runner.cog_server.loop_link import LoopCalls, WakeUps
from runner.cog_server.streaming import PredictionStream, hook_coglet


class Runner(BaseRunner):  # cog has no types
    async def setup(self) -> None:
        prepare_run(Runner.run)
        check_coglet(print)
        hook_coglet()
        self._loop_thread = threading.get_ident()
        loop = asyncio.get_running_loop()
        self._calls, self._wake_ups = LoopCalls(loop), WakeUps(loop)

    @cog.streaming
    @cog.concurrent(max=4)
    async def run(self, prompt: str, **others: object) -> ConcatenateIterator[str]:
        """``others``: the real runner's inputs, which coglet passes by its schema."""
        if prompt == "refuse":
            raise shown_error(InvalidSetting(name="prompt", expected="another", value=prompt))
        if prompt == "wait":
            await asyncio.sleep(0)
        is_in_loop = threading.get_ident() == self._loop_thread
        return PredictionStream(self._calls, self._wake_ups).chunks(self.where(is_in_loop))

    async def where(self, is_run_in_loop: bool) -> AsyncGenerator[str, None]:
        is_source_in_loop = threading.get_ident() == self._loop_thread
        yield json.dumps({"run": is_run_in_loop, "source": is_source_in_loop, "id": prediction_id()})
