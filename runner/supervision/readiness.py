"""Waits until a supervised child answers by HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from runner.supervision.child import Child, exit_reason

_POLL_S = 0.05
_ANSWER_TIMEOUT_S = 2.0


async def await_ready(
    child: Child, url: str, timeout_s: float, is_waiting: Callable[[], bool] = lambda: False
) -> str | None:
    """Wait until ``url`` is answered with 200. Returns None, or why it was not.

    While ``is_waiting`` the child waits for something itself, which does not count as its time.
    """
    deadline_s = time.monotonic() + timeout_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ANSWER_TIMEOUT_S)) as session:
        while not await _is_ok(session, url):
            if (code := child.returncode) is not None:
                await child.drain_log()
                return f"it ended ({exit_reason(code)})"
            if is_waiting():
                deadline_s = time.monotonic() + timeout_s
            if time.monotonic() > deadline_s:
                return f"not within {timeout_s:g} s"
            await asyncio.sleep(_POLL_S)
    return None


async def _is_ok(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False
