"""The queue deadline of a request: its first output has to arrive by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from errors.requests import QueueDeadlinePassed
from runner.engines.protocol.messages import Output


async def begun_within(
    outputs: AsyncGenerator[Output, None], max_queue_ms: int
) -> AsyncGenerator[Output, None]:
    """The same outputs. Without one in time it leaves the iteration, which frees the request, with E1012."""
    async with aclosing(outputs):
        try:
            yield await asyncio.wait_for(anext(outputs), max_queue_ms / 1000)
        except asyncio.TimeoutError:
            raise QueueDeadlinePassed(max_queue_ms=max_queue_ms) from None
        except StopAsyncIteration:
            return
        async for output in outputs:
            yield output
