"""The processes of the API in front of an engine server that a test is itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runner.api.supervisor import APIServers
from runner.observability.meter import clear_folder
from runner.settings.paths import make_runtime_dir, metrics_dir
from runner.settings.ports import free_ports
from runner.settings.settings import Settings, load_settings
from tests.runner.paced_engine import make_paced_model

EngineServer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def settings_of(folder: Path, **more: str) -> tuple[Settings, int]:
    """Return settings of an API on a free port, and the port. ``more``: variables."""
    engine = make_paced_model(folder / "model", 0)
    port, triton_port = free_ports(2)
    environment = {
        "HOME": str(folder),
        "OPENAI_HOST": "127.0.0.1",
        "OPENAI_PORT": str(port),
        "OPENAI_PROCESSES": "1",
        "TRITON_HTTP_PORT": str(triton_port),
        **more,
    }
    settings = load_settings(environment).model_copy(update={"engine_dir": engine.directory})
    make_runtime_dir(triton_port)
    clear_folder(metrics_dir(triton_port))
    return settings, port


@asynccontextmanager
async def started(
    settings: Settings, path: Path, engine_server: EngineServer, *, starts_again: bool = True
) -> AsyncIterator[APIServers]:
    """They have begun, and are stopped in the end. ``path``: of the engine server's socket.

    ``starts_again``: whether one that ends is started again.
    """
    servers = APIServers(settings, path, None, log=lambda line: None, on_failure=lambda failure: starts_again)
    async with await asyncio.start_unix_server(engine_server, str(path)):
        servers.begin()
        try:
            yield servers
        finally:
            await servers.stop()
