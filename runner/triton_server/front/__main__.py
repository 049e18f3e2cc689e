"""The process of the front. ``runner.triton_server.front.supervisor`` starts it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.triton_front import front_socket_path
from runner.observability.logs import set_up_logging
from runner.settings.api_keys import APIKeys
from runner.supervision.tuning import freeze_loaded_objects, return_free_memory
from runner.triton_server.direct import DirectResponses
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.connections import ClientConnection, Connections
from runner.triton_server.front.grpc.server import GRPCConnection, GRPCServer
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.http.server import HTTPServer
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.models import Models
from runner.triton_server.front.start import FrontStart
from runner.triton_server.front.triton_http import TritonHTTP
from runner.triton_server.grpc_client.triton import Triton

_MAX_HELD_BYTES = 32 << 20
"""Of requests that arrive, or that Triton has not begun to answer."""
_MAX_UNREAD_BYTES = 16 << 20
"""Of answers that clients have not read; beyond it the slowest client is disconnected."""
_WATCH_S = 0.5
_TRIM_S = 5.0


async def serve(start: FrontStart) -> None:
    """Serve until SIGTERM."""
    settings = start.settings
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    triton = Triton(start.triton.grpc)
    keys = APIKeys(settings.api_keys)
    budget = Budget(_MAX_HELD_BYTES)
    is_managed, max_body_bytes = settings.is_triton_managed, settings.triton_max_body_bytes
    inferences = Inferences(
        triton, Models(triton), budget, settings.triton_max_requests, is_managed=is_managed
    )
    async with AsyncExitStack() as exits:
        engine = None
        if start.engine_socket is not None:
            client = EngineClient(start.engine_socket, settings.triton_timeout_s, start.engine_kind)
            engine = await exits.enter_async_context(client)
            inferences.direct = DirectResponses(front_socket_path(start.engine_socket))
            exits.callback(inferences.direct.close)

        def is_engine_ready() -> bool:
            return inferences.is_connected and (engine is None or engine.is_ready)

        triton_http = TritonHTTP(start.triton)
        http = HTTPServer(inferences, triton_http, keys, is_engine_ready, is_managed=is_managed)
        grpc = GRPCServer(
            inferences,
            triton_http,
            keys,
            budget,
            is_engine_ready,
            max_body_bytes=max_body_bytes,
            is_managed=is_managed,
        )
        connections: Connections[HTTPConnection] = Connections()
        new = partial(HTTPConnection, check=http.check, connections=connections, budget=budget)
        await _listen(exits, start.http_fd, partial(new, http.handle, max_body_bytes=max_body_bytes))
        await _listen(exits, start.grpc_fd, grpc.connection)
        await _listen(exits, start.metrics_fd, partial(new, http.handle_metrics, max_body_bytes=0))
        freeze_loaded_objects()
        tasks = [
            asyncio.create_task(_watch_unread(connections, grpc.connections)),
            asyncio.create_task(inferences.stay_connected()),
            asyncio.create_task(_return_memory()),
        ]
        await stopped.wait()
        for task in tasks:
            task.cancel()
        everyone: list[ClientConnection] = [*connections, *grpc.connections]
        for connection in everyone:
            connection.abort()
        triton.close()


async def _listen(exits: AsyncExitStack, fd: int, new_connection: Callable[[], asyncio.BaseProtocol]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(new_connection, sock=socket.socket(fileno=fd), start_serving=False)
    await exits.enter_async_context(server)
    await server.start_serving()


async def _watch_unread(*groups: Connections[HTTPConnection] | Connections[GRPCConnection]) -> None:
    """Disconnect the slowest clients while all together leave too much unread."""
    while True:
        await asyncio.sleep(_WATCH_S)
        connections: list[ClientConnection] = [each for group in groups for each in group]
        unread = {each: size for each in connections if (size := each.unread_bytes)}
        while sum(unread.values()) > _MAX_UNREAD_BYTES:
            slowest = max(unread, key=unread.__getitem__)
            del unread[slowest]
            slowest.abort()


async def _return_memory() -> None:
    while True:
        await asyncio.sleep(_TRIM_S)
        return_free_memory()


def main() -> None:
    start = FrontStart.model_validate_json(sys.stdin.read())
    set_up_logging(start.settings.log_format)
    asyncio.run(serve(start))


if __name__ == "__main__":
    main()
