"""The answer of a server that stops to new clients: 503, and the connection closed."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from errors.triton import ServerStopping
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_in
from runner.supervision.child import within

OnRejected = Callable[[bytes, str], None]
"""Function that takes the head of a rejected request, and its id."""

_PATIENCE_S = 1.0
_RETRY_AFTER_S = 1


async def reject(listener: socket.socket, on_rejected: OnRejected = lambda head, request_id: None) -> None:
    """Answer every request with 503, so that the client tries another server at once."""
    listener.setblocking(False)
    server = await asyncio.start_server(partial(_answer_503, on_rejected), sock=listener)
    await server.serve_forever()


async def _answer_503(
    on_rejected: OnRejected, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    body = json.dumps(_document()).encode()
    with suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        request = await within(reader.readuntil(b"\r\n\r\n"), _PATIENCE_S)
        request_id = request_id_in(request)
        on_rejected(request, request_id)
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nRetry-After: {_RETRY_AFTER_S}\r\n"
            f"{REQUEST_ID_HEADER}: {request_id}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.write_eof()
        # NOTE: if we close with unread data, the client's kernel may drop our answer.
        await within(reader.read(), _PATIENCE_S)
    writer.close()


def _document() -> dict[str, object]:
    """Return a document that reads as an answer of Cog, of its health check, and as an OpenAI error."""
    error = ServerStopping(reason="it was asked to")
    return {
        "status": "UNHEALTHY",
        "detail": str(error),
        "user_healthcheck_error": str(error),
        "error": {"message": str(error), "type": "server_error", "param": None, "code": error.code},
    }
