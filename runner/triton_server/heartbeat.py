"""Triton's heartbeat: one that does not answer for too long, though it should, is ended and started again."""

from __future__ import annotations

import asyncio
import time

from runner.triton_server.client import TritonClient
from runner.triton_server.server import TritonServer

_HEARTBEAT_S = 2.0
_FEWEST_SILENCES = 3
"""Of Triton, before it counts as hanging: a pause of ours, not its, is one at most."""


async def watch_heart(server: TritonServer, client: TritonClient, timeout_s: float) -> None:
    """Without an end: who started it cancels it."""
    heard_s, silences = time.monotonic(), 0
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        if server.down_reason is not None or await client.is_answering():
            heard_s, silences = time.monotonic(), 0
            continue
        silences += 1
        if time.monotonic() - heard_s > timeout_s and silences >= _FEWEST_SILENCES:
            server.kill(f"it did not answer for {timeout_s:g} s")
            heard_s, silences = time.monotonic(), 0
