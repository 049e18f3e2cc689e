"""The last answer of a server that stops, to whoever still comes: 503, and the connection closed."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

from errors.triton_system import ServerStopping

_PATIENCE_S = 1.0
_RETRY_AFTER_S = 1


async def turn_away(listener: socket.socket) -> None:
    """Answer whoever comes with 503, that he may go elsewhere at once."""
    listener.setblocking(False)
    server = await asyncio.start_server(_answer_503, sock=listener)
    await server.serve_forever()


async def _answer_503(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps(_document()).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\nRetry-After: {_RETRY_AFTER_S}\r\n\r\n"
    )
    with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
        writer.write(head.encode() + body)
        await writer.drain()
        writer.write_eof()
        # NOTE: closed with something unread, the client's kernel may throw our answer away.
        await asyncio.wait_for(reader.read(), _PATIENCE_S)
    writer.close()


def _document() -> dict[str, object]:
    """The same to readers of Cog's answers, of its health check and of OpenAI's errors."""
    error = ServerStopping(reason="it was asked to")
    return {
        "status": "UNHEALTHY",
        "detail": str(error),
        "user_healthcheck_error": str(error),
        "error": {"message": str(error), "type": "server_error", "param": None, "code": error.code},
    }
