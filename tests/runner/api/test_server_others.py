"""A process of the API accepts what waits on the socket of another one, while it can serve it."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import MagicMock

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.api.server import Server
from runner.settings.settings import load_settings


@pytest.fixture(autouse=True)
def _limits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the number of open files of this process as it is."""
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def serving(
    application: ASGIApp, own: socket.socket, other: socket.socket, most: int = 10
) -> AsyncIterator[Server]:
    settings = load_settings({"ENGINE_DIR": ".", "OPENAI_MAX_CONNECTIONS": str(most)})
    server = Server(application, settings, MagicMock(), None, [other])
    task = asyncio.create_task(server.serve([own]))
    try:
        yield server
    finally:
        server.stopped.set()
        await task


async def ask(listener: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    return reader, writer


async def test_who_waits_for_another_is_answered_unless_this_one_stops() -> None:
    own, other = listening(), listening()
    async with serving(PlainTextResponse("ok"), own, other) as server:
        reader, writer = await ask(other)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        server.stopped.set()
        _, writer = await ask(other)
        await asyncio.sleep(0.3)
        other.accept()[0].close()  # It waits still.
        writer.close()
    other.close()


async def test_without_room_nothing_is_taken() -> None:
    own, other = listening(), listening()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun.set()
        await may_end.wait()
        await PlainTextResponse("ok")(scope, receive, send)

    async with serving(application, own, other, most=1):
        reader, running = await ask(own)
        await has_begun.wait()
        _, waiting = await ask(other)
        await asyncio.sleep(0.3)
        other.accept()[0].close()
        may_end.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        running.close()
        waiting.close()
    other.close()
