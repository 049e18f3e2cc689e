"""Triton's heartbeat: a Triton that misses it for too long is ended and started again."""

from __future__ import annotations

import asyncio
import time

from runner.triton_server.client import TritonClient
from runner.triton_server.server import TritonServer

_HEARTBEAT_S = 2.0
_MIN_MISSED = 3
"""Before Triton is treated as hung: if this process was paused, it misses one at most."""


async def watch_heartbeat(server: TritonServer, client: TritonClient, timeout_s: float) -> None:
    """Runs until it is cancelled."""
    answered_s, missed = time.monotonic(), 0
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        if server.down_reason is not None or await client.is_answering():
            answered_s, missed = time.monotonic(), 0
            continue
        missed += 1
        if time.monotonic() - answered_s > timeout_s and missed >= _MIN_MISSED:
            server.kill(f"it did not answer for {timeout_s:g} s")
            answered_s, missed = time.monotonic(), 0
