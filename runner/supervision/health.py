"""Whether a server says that it is well.

NOTE: not by aiohttp, whose sessions take twice the time, and 0.1 s to import: every process is asked once a
second.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from urllib.parse import urlsplit

_TIMEOUT_S = 2.0


async def answers_ok(url: str) -> bool:
    """Whether ``url``, of plain HTTP, is answered with 200, over a connection of its own."""
    answer = await ask(url)
    return answer is not None and answer[0] == 200


async def ask(url: str, body: bytes = b"") -> tuple[int, bytes] | None:
    """The status and body that ``url`` is answered with, and that end with the connection; else None.

    A ``body`` is JSON, and is sent with POST.
    """
    try:
        head, _, content = (await asyncio.wait_for(_ask(url, body), _TIMEOUT_S)).partition(b"\r\n\r\n")
        return int(head[9:12]), content
    except (OSError, ValueError, asyncio.TimeoutError):
        return None


async def _ask(url: str, body: bytes) -> bytes:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    with closing(writer):
        lines = (
            f"{'POST' if body else 'GET'} {address.path} HTTP/1.1",
            f"Host: {address.netloc}",
            "Connection: close",
            f"Content-Length: {len(body)}",
            "",
            "",
        )
        writer.write("\r\n".join(lines).encode() + body)
        return await reader.read()
