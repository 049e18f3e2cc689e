"""A stand-in for Triton's HTTP server that does what a server should not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """Provide the URL of a server that answers every ``generate`` and ``/metrics`` so."""
    app = web.Application()
    app.router.add_get("/metrics", handler)
    app.router.add_post("/v2/models/tensorrt_llm/generate", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def answer(status: int, body: bytes, content_type: str = "application/json") -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={"Content-Type": content_type})

    return handle


async def break_off(request: web.Request) -> web.StreamResponse:
    """Begin an answer and break the connection off, as a killed server does."""
    response = web.StreamResponse()
    await response.prepare(request)
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    request.transport.abort()
    return response


async def be_silent(request: web.Request) -> None:
    await asyncio.sleep(60)
