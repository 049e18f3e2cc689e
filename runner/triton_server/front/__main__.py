"""The process of the front. ``runner.triton_server.front.supervisor`` starts it."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Protocol

from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.triton_front import front_socket_path
from runner.http.connections import Limits
from runner.http.server import HTTPServer
from runner.observability.logs import set_up_logging
from runner.settings.api_keys import APIKeys
from runner.supervision.tuning import freeze_loaded_objects, return_free_memory
from runner.triton_server.direct import DirectResponses
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.grpc.server import GRPCServer
from runner.triton_server.front.http.answers import word_refusal
from runner.triton_server.front.http.application import Application
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.models import Models
from runner.triton_server.front.start import FrontStart
from runner.triton_server.front.triton_http import TritonHTTP
from runner.triton_server.grpc_client.triton import Triton

_MAX_HELD_BYTES = 32 << 20
"""Size of requests that arrive by gRPC, or that Triton has not begun to answer."""
_MAX_CONNECTIONS = 2048
"""Number of connections by HTTP. Each takes 4 KiB, besides what of its request has arrived."""
_MAX_METRICS_CONNECTIONS = 256
_MAX_HEAD_BYTES = 1 << 14
_RECEIVE_TIMEOUT_S = 60.0
_MAX_UNREAD_BYTES = 16 << 20
"""Size of answers that clients have not read, above which the slowest client is disconnected."""
_WATCH_S = 0.5
_TRIM_S = 5.0


class _Connection(Protocol):
    @property
    def unread_bytes(self) -> int: ...
    def abort(self) -> None: ...


async def serve(start: FrontStart) -> None:
    """Serve until SIGTERM."""
    settings = start.settings
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    triton = Triton(start.triton.grpc)
    max_body_bytes = settings.triton_max_body_bytes
    inferences = Inferences(
        triton,
        Models(triton),
        Budget(_MAX_HELD_BYTES),
        settings.triton_max_requests,
        is_managed=settings.is_triton_managed,
    )
    async with AsyncExitStack() as exits:
        engine = None
        if start.engine_socket is not None:
            client = EngineClient(start.engine_socket, settings.triton_timeout_s, start.engine_kind)
            engine = await exits.enter_async_context(client)
            inferences.direct = DirectResponses(front_socket_path(start.engine_socket))
            exits.callback(inferences.direct.close)

        def is_engine_ready() -> bool:
            return inferences.is_connected and (engine is None or (engine.is_ready and not engine.is_asleep))

        keys = APIKeys(settings.api_keys)
        shared = (inferences, TritonHTTP(start.triton), keys, is_engine_ready, max_body_bytes)
        application = Application(*shared)
        grpc = GRPCServer(*shared)
        http = HTTPServer(application, _limits(_MAX_CONNECTIONS, max_body_bytes), word_refusal)
        metrics = HTTPServer(application.metrics_port, _limits(_MAX_METRICS_CONNECTIONS, 0), word_refusal)
        await http.listen([socket.socket(fileno=start.http_fd)])
        await metrics.listen([socket.socket(fileno=start.metrics_fd)])
        grpc_listener = await loop.create_server(grpc.connection, sock=socket.socket(fileno=start.grpc_fd))
        freeze_loaded_objects()
        groups = (http.connections, metrics.connections, grpc.connections)
        tasks = [
            *(asyncio.create_task(each.serve(stopped)) for each in (http, metrics)),
            asyncio.create_task(_watch_unread(groups)),
            asyncio.create_task(inferences.stay_connected()),
            asyncio.create_task(_return_memory()),
        ]
        await stopped.wait()
        for task in tasks:
            task.cancel()
        grpc_listener.close()
        for connection in _all(groups):
            connection.abort()
        triton.close()


def _limits(max_connections: int, max_body_bytes: int) -> Limits:
    return Limits(
        max_connections=max_connections,
        max_head_bytes=_MAX_HEAD_BYTES,
        max_body_bytes=max_body_bytes,
        receive_timeout_s=_RECEIVE_TIMEOUT_S,
    )


def _all(groups: Iterable[Iterable[_Connection]]) -> list[_Connection]:
    return [each for group in groups for each in group]


async def _watch_unread(groups: Iterable[Iterable[_Connection]]) -> None:
    """Disconnect the slowest clients while all together leave too much unread."""
    while True:
        await asyncio.sleep(_WATCH_S)
        unread = {each: size for each in _all(groups) if (size := each.unread_bytes)}
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
