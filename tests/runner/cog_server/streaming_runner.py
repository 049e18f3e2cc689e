"""A runner for a real coglet that streams by ``runner.cog_server`` alone; ``prompt`` names what it does."""

from __future__ import annotations

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


class Runner(BaseRunner):  # type: ignore[misc]  # cog has no types
    async def setup(self) -> None:
        prepare_run(Runner.run)
        check_coglet(print)
        hook_coglet()
        self._loop_thread = threading.get_ident()
        loop = asyncio.get_running_loop()
        self._calls, self._wake_ups = LoopCalls(loop), WakeUps(loop)
        self._may_go_on = asyncio.Event()
        self._was_cancelled = asyncio.Event()

    @cog.streaming  # type: ignore[untyped-decorator]
    @cog.concurrent(max=4)  # type: ignore[untyped-decorator]
    async def run(self, prompt: str, **others: object) -> ConcatenateIterator[str]:
        """``others``: the real runner's inputs, which coglet passes by its schema."""
        if prompt == "refuse":
            raise shown_error(InvalidSetting(name="prompt", expected="another", value=prompt))
        if prompt == "wait":
            await asyncio.sleep(0)
        is_in_loop = threading.get_ident() == self._loop_thread
        source = {"where": self.where(is_in_loop), "steps": self.steps(), "go_on": self.go_on()}[prompt]
        return PredictionStream(self._calls, self._wake_ups).chunks(source)

    async def where(self, is_run_in_loop: bool) -> AsyncGenerator[str, None]:
        is_source_in_loop = threading.get_ident() == self._loop_thread
        yield json.dumps({"run": is_run_in_loop, "source": is_source_in_loop, "id": prediction_id()})

    async def steps(self) -> AsyncGenerator[str, None]:
        """Waits after its first text; a cancellation is reported by ``go_on``."""
        yield "first"
        try:
            await self._may_go_on.wait()
        except asyncio.CancelledError:
            self._was_cancelled.set()
            raise
        yield "second"

    async def go_on(self) -> AsyncGenerator[str, None]:
        self._may_go_on.set()
        yield "cancelled" if self._was_cancelled.is_set() else "not cancelled"
        self._may_go_on.clear()
        self._was_cancelled.clear()
