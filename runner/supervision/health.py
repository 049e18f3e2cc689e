"""Whether a server says that it is well."""

import asyncio
from contextlib import closing
from urllib.parse import urlsplit

_TIMEOUT_S = 2.0


async def answers_ok(url: str) -> bool:
    """Whether ``url``, of plain HTTP, is answered with 200, over a connection of its own."""
    try:
        return await asyncio.wait_for(_status(url), _TIMEOUT_S) == b"200"
    except (OSError, ValueError, asyncio.TimeoutError):
        return False


async def _status(url: str) -> bytes:
    """NOTE: not by aiohttp, whose sessions take twice the time: every process is asked once a second."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    with closing(writer):
        head = f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        return (await reader.readline())[9:12]
