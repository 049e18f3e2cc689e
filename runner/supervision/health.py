"""Client of this machine's HTTP servers: health, metrics and Triton's metadata.

NOTE: a library's session takes twice the time, and 0.1 s to import. Every process is asked once a second.
"""

import asyncio
import re
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from runner.supervision.child import within

_TIMEOUT_S = 2.0
_MAX_BYTES = 1 << 20
_HEAD_END = b"\r\n\r\n"
_CONTENT_TYPE = re.compile(rb"\r\nContent-Type: *([^\r]*)", re.IGNORECASE)


@dataclass(frozen=True)
class HTTPAnswer:
    status: int
    content: bytes
    content_type: bytes


async def answers_ok(url: str) -> bool:
    """Return True if ``url``, of plain HTTP, is answered with 200, over a connection of its own."""
    answer = await ask(url)
    return answer is not None and answer.status == 200


async def ask(url: str, body: bytes = b"") -> HTTPAnswer | None:
    """Return the answer; None if it exceeds 2 s or 1 MiB, or fails. A ``body`` is sent with POST."""
    try:
        return await within(request("POST" if body else "GET", url, body), _TIMEOUT_S)
    except (OSError, ValueError, asyncio.TimeoutError):
        return None


async def request(method: str, url: str, body: bytes = b"") -> HTTPAnswer:
    """Return the answer of at most 1 MiB. Raises OSError, or ValueError if it is not HTTP.

    The server has to close the connection, as it is asked to. The body is returned as it was sent: chunks are
    not decoded.
    """
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    with closing(writer):
        lines = (
            f"{method} {address.path} HTTP/1.1",
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
    head, end, content = answer.partition(_HEAD_END)
    if not end:
        raise ValueError("the answer has ended early")
    types = _CONTENT_TYPE.search(head)
    return HTTPAnswer(int(head[9:12]), content, types[1] if types else b"application/json")
