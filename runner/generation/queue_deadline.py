"""The queue deadline of a request: its first output has to arrive by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from errors.requests import QueueDeadlinePassed
from runner.engines.protocol.messages import Output
from runner.engines.protocol.outlet import Outputs


async def begun_within(outputs: Outputs, max_queue_ms: int) -> AsyncGenerator[Output, None]:
    """Yield the outputs. If the first is late, free the request and raise E1012."""
    async with aclosing(outputs):
        # NOTE: not ``wait_for``, which loses a cancellation that comes with the output.
        first = asyncio.ensure_future(anext(outputs))
        try:
            await asyncio.wait({first}, timeout=max_queue_ms / 1000)
            if not first.done():
                raise QueueDeadlinePassed(max_queue_ms=max_queue_ms)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        try:
            yield first.result()
        except StopAsyncIteration:
            return
        async for output in outputs:
            yield output
