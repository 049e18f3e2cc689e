"""Asks a server of this machine whether it is well, and for its metrics.

NOTE: not by aiohttp, whose sessions take twice the time, and 0.1 s to import: every process is asked once a
second.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from urllib.parse import urlsplit

_TIMEOUT_S = 2.0
_MAX_BYTES = 1 << 20
_HEAD_END = b"\r\n\r\n"


async def answers_ok(url: str) -> bool:
    """Whether ``url``, of plain HTTP, is answered with 200, over a connection of its own."""
    answer = await ask(url)
    return answer is not None and answer[0] == 200


async def ask(url: str, body: bytes = b"") -> tuple[int, bytes] | None:
    """The status and body of the answer; None without one that ends within 2 s and 1 MiB.

    The server has to close the connection, as it is asked to. Its body is given as it was sent: chunks are
    not decoded. A ``body`` is sent with POST.
    """
    try:
        answer = await asyncio.wait_for(_ask(url, body), _TIMEOUT_S)
        head, end, content = answer.partition(_HEAD_END)
        return (int(head[9:12]), content) if end else None
    except (OSError, ValueError, asyncio.TimeoutError):
        return None


async def _ask(url: str, body: bytes) -> bytes:
    """Raises OSError, ValueError."""
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
        answer = b""
        while piece := await reader.read(_MAX_BYTES):
            answer += piece
            if len(answer) > _MAX_BYTES:
                raise ValueError("the answer is too long")
        return answer
