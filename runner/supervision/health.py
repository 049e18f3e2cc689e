"""Whether a server says that it is well."""

import asyncio

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(2.0)


async def answers_ok(url: str) -> bool:
    """Whether ``url`` is answered with 200, over a connection of its own."""
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False
