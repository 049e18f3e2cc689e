"""Health of a server: its status, or no answer."""

import asyncio
import socket
from contextlib import suppress

import pytest

from runner.supervision import health
from runner.supervision.health import answers_ok, ask


@pytest.mark.parametrize(
    ("answer", "is_ok"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", True),
        (b"HTTP/1.0 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n200", False),
        (b"200", False),
        (b"x" * 100_000, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n", False),
        (b"", False),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_only_an_answer_with_200_is_well(host: str, answer: bytes, is_ok: bool) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/health"
        assert await answers_ok(url) == is_ok
    assert asked[0].startswith(b"GET /health HTTP/1.1\r\n")


async def test_a_server_that_is_silent_or_not_there_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/health"
        assert not await answers_ok(url)
    assert not await answers_ok(url)


async def test_an_answer_without_an_end_is_left() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics") is None
    assert sent < 1 << 26  # With what the sockets hold.
