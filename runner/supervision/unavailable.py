"""The last answer of a server that stops, to whoever still comes: 503, and the connection closed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from errors.triton import ServerStopping
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_in

Tell = Callable[[bytes, str], None]
"""Takes the head of a request, and its id."""

_PATIENCE_S = 1.0
_RETRY_AFTER_S = 1


async def turn_away(listener: socket.socket, tell: Tell = lambda head, request_id: None) -> None:
    """Answer whoever comes with 503, that he may go elsewhere at once. ``tell`` hears of each."""
    listener.setblocking(False)
    server = await asyncio.start_server(partial(_answer_503, tell), sock=listener)
    await server.serve_forever()


async def _answer_503(tell: Tell, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps(_document()).encode()
    with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        asked = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
        request_id = request_id_in(asked)
        tell(asked, request_id)
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nRetry-After: {_RETRY_AFTER_S}\r\n"
            f"{REQUEST_ID_HEADER}: {request_id}\r\n\r\n"
        )
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
