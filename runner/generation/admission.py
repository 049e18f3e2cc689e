"""Admission: counts requests, rejects them during a graceful shutdown, and retries lost ones.

A request with a queue deadline that has no first token by then ends with E1012, and the engine frees it.
A request without tokens that is lost because the engine dies is sent again once, when the engine is back.
A request that had tokens ends with the error: a second answer could differ.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, RankEnded
from errors.external_triton import ExternalTritonUnavailable
from errors.requests import QueueDeadlinePassed
from errors.triton import ServerStopping, TritonUnavailable
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outlet, Outputs
from runner.generation.generation import TokenSource
from runner.supervision.child import Log, within

_RETRY_WAIT_S = 10.0
"""Longest time that a request without a token waits for the engine to be back."""
_RETRY_POLL_S = 0.05
_DRAIN_POLL_S = 0.02
_END_ALL_S = 2.0
_DROP_S = 0.3
_GONE = (TritonUnavailable, ExternalTritonUnavailable, EngineCrashed, RankEnded)


class EngineSource(TokenSource, Protocol):
    """The engine server, or NVIDIA's C++ backend in Triton."""

    async def is_answering(self) -> bool:
        """Tell whether the engine is loaded and takes requests."""

    def end_all(self) -> None:
        """End every running request with E2105 or E2107."""


class Admission:
    """A source of tokens in front of ``engine``."""

    def __init__(self, engine: EngineSource) -> None:
        self.engine = engine
        self._stopping: ServerStopping | None = None
        self.num_running = 0

    def generate(self, submit: Submit, outlet: Outlet[Output] | None = None) -> Outputs:
        """Yield the engine's outputs. Raises its errors, E1012 or, while the server stops, E2110."""
        outputs = self._generate(submit, outlet)
        return outputs if submit.max_queue_ms is None else begun_within(outputs, submit.max_queue_ms)

    async def _generate(self, submit: Submit, outlet: Outlet[Output] | None) -> AsyncGenerator[Output, None]:
        if self._stopping is not None:
            raise self._stopping
        has_tokens, may_retry = False, True
        self.num_running += 1
        try:
            while True:
                try:
                    async with aclosing(self.engine.generate(submit, outlet)) as outputs:
                        async for output in outputs:
                            if not has_tokens:
                                has_tokens = True
                                del submit  # It may be large, and is not sent again.
                            yield output
                    return
                except _GONE as exc:
                    was_ready = exc.facts.get("was_ready", True)
                    if has_tokens or not may_retry or not was_ready or not await self.wait_for_engine():
                        raise
                    may_retry = False
        except CodedError as exc:
            raise self._reported(exc) from exc
        finally:
            self.num_running -= 1

    async def wait_for_engine(self) -> bool:
        """Wait until the engine answers. Return False if it does not soon."""
        deadline_s = time.monotonic() + _RETRY_WAIT_S
        while time.monotonic() < deadline_s and self._stopping is None:
            if await self.engine.is_answering():
                return True
            await asyncio.sleep(_RETRY_POLL_S)
        return False

    def _reported(self, error: CodedError) -> CodedError:
        """Return E2110 for a connection that is lost in a graceful shutdown, which closes connections."""
        return self._stopping if self._stopping is not None and isinstance(error, _GONE) else error

    def refuse(self, reason: str) -> None:
        """Reject new requests with E2110 from now on."""
        self._stopping = ServerStopping(reason=reason)

    def end_all(self, reason: str) -> None:
        """End running requests with E2110, and reject new ones."""
        self.refuse(reason)
        self.engine.end_all()

    async def drain(self, grace_s: float, log: Log) -> None:
        """Reject new requests, let running ones end within the grace period, then end them with E2110."""
        self.refuse("it was asked to")
        log(f"stopping: {self.num_running} requests have {grace_s:g} s to end")
        if not await self._is_drained(grace_s):
            log(f"stopping: {self.num_running} requests are ended")
            self.end_all(f"it was asked to, and the grace period of {grace_s:g} s is over")
            await self._is_drained(_END_ALL_S)
            # NOTE: Triton may crash at its end while it still drops requests whose clients have gone.
            await asyncio.sleep(_DROP_S)

    async def _is_drained(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self.num_running and time.monotonic() < deadline_s:  # noqa: ASYNC110 - polled at the end alone
            await asyncio.sleep(_DRAIN_POLL_S)
        return not self.num_running


async def begun_within(outputs: Outputs, max_queue_ms: int) -> AsyncGenerator[Output, None]:
    """Yield the outputs. If the first is late, free the request and raise E1012."""
    async with aclosing(outputs):
        try:
            first = await within(anext(outputs), max_queue_ms / 1000)
        except asyncio.TimeoutError as exc:
            raise QueueDeadlinePassed(max_queue_ms=max_queue_ms) from exc
        except StopAsyncIteration:
            return
        yield first
        async for output in outputs:
            yield output
