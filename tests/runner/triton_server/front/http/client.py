"""A client of one connection of HTTP/1.1, fed by hand: no socket, no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from errors.triton_front import RequestTooLarge
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.connections import Connections
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.http.requests import Request
from tests.runner.triton_server.transport import Transport

MAX_BODY_BYTES = 60_000
MAX_HELD_BYTES = 160_000


class Client:
    """One connection to a server that keeps what it was given, and answers if ``answers``."""

    def __init__(self, budget: Budget | None = None, *, answers: bool = True) -> None:
        self.requests: list[Request] = []
        self.budget = budget or Budget(MAX_HELD_BYTES)
        self.connections: Connections[HTTPConnection] = Connections()
        self._answers = answers
        self.connection = HTTPConnection(
            self._handle, self._check, self.connections, self.budget, MAX_BODY_BYTES
        )
        self.transport = Transport(self.connection)

    async def send(self, data: bytes, piece_bytes: int = 1 << 14) -> bytes:
        """All that was answered so far."""
        for at in range(0, len(data), piece_bytes):
            self.transport.feed(data[at : at + piece_bytes])
            await asyncio.sleep(0)
        await settle()
        return bytes(self.transport.sent)

    @property
    def seen(self) -> list[tuple[str, bytes, bytes]]:
        return [(each.method, each.target, bytes(each.body)) for each in self.requests]

    def statuses(self) -> list[int]:
        return [int(each[:3]) for each in bytes(self.transport.sent).split(b"HTTP/1.1 ")[1:]]

    def _handle(self, request: Request, connection: HTTPConnection) -> None:
        self.requests.append(request)
        if self._answers:
            connection.respond(200, b'{"a": 1}')

    def _check(self, request: Request) -> None:
        if request.target == b"/refused":
            raise RequestTooLarge(part="body", max_bytes=0, remedy="send less")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())
