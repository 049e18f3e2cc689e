"""A client of one connection of HTTP/1.1, fed by hand: no socket, no process."""

import asyncio
import re

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.api.server import word_refusal
from runner.http.connection import HTTPConnection, WordRefusal
from runner.http.connections import Connections, Limits
from tests.runner.triton_server.transport import Transport

MAX_BODY_BYTES = 60_000
LIMITS = Limits(
    max_connections=3,
    max_head_bytes=1 << 14,
    max_body_bytes=MAX_BODY_BYTES,
    receive_timeout_s=60,
    idle_timeout_s=60,
)


class Client:
    """One connection to ``application``; else to one that keeps what it was given, and answers."""

    def __init__(
        self,
        application: ASGIApp | None = None,
        refusal: WordRefusal = word_refusal,
        registry: Connections | None = None,
    ) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        """Methods, paths and bodies."""
        self.registry = registry or Connections(LIMITS)
        self.connection = HTTPConnection(application or self._answer, self.registry, refusal)
        self.transport = Transport(self.connection)

    async def send(self, data: bytes, piece_bytes: int = 1 << 14) -> bytes:
        """All that was answered so far."""
        for at in range(0, len(data), piece_bytes):
            self.transport.feed(data[at : at + piece_bytes])
            await asyncio.sleep(0)
        await settle()
        return bytes(self.transport.sent)

    def statuses(self) -> list[int]:
        return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) \w", self.transport.sent)]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.seen.append((scope["method"], scope["path"], body))
        if scope["path"] != "/stream":
            await Response(b'{"a": 1}')(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": part, "more_body": part != b""})


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)
