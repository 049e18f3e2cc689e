"""The API server and a paced engine without Triton and Cog, in front of which an API starts in seconds."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from engine.directory import load
from runner.api.supervisor import APIServers
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.client import EngineClient
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import EngineServer
from runner.observability.meter import clear_folder
from runner.settings.paths import engine_socket_path, make_runtime_dir, metrics_dir
from runner.settings.settings import load_settings
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.paced_engine import END_ID, PacedModel
from tests.runner.servers import DEADLINE_S, HOST, free_ports

T = TypeVar("T")


class APIAlone:
    """Close it."""

    def __init__(self, model: PacedModel, folder: Path, **environment: str) -> None:
        self.port, triton_port = free_ports(2)
        self.url = f"http://{HOST}:{self.port}"
        template = folder / "template.jinja"
        template.write_text(CHAT_TEMPLATE)
        settings = load_settings(
            {
                "HOME": str(folder),
                "ENGINE_DIR": str(model.directory),
                "OPENAI_HOST": HOST,
                "OPENAI_PORT": str(self.port),
                "OPENAI_PROCESSES": "1",
                "TRITON_HTTP_PORT": str(triton_port),
                "CHAT_TEMPLATE": str(template),
                "COG_TRITON_ENGINE_PYTHON": sys.executable,
                **environment,
            }
        )
        self._settings = settings
        self.log: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._open(triton_port))

    async def _open(self, triton_port: int) -> None:
        settings = self._settings
        runtime = make_runtime_dir(triton_port)
        clear_folder(metrics_dir(triton_port))
        engine = load(settings.engine_dir)
        socket_path = engine_socket_path(triton_port)
        arrival = runtime / "engine_arrival.json"
        self._client = EngineClient(socket_path, 60.0, engine.manifest.engine_kind)
        await self._client.__aenter__()
        start = EngineStart(
            engine_kind=engine.manifest.engine_kind,
            engine_dir=engine.path,
            options={},
            arrival=arrival,
            hang_timeout_s=60.0,
            metrics_dir=metrics_dir(triton_port),
        )
        log = self.log.append
        self.engine = EngineServer(
            settings.engine_python,
            start,
            socket_path,
            self._client,
            log,
            lambda failure: True,
            start_timeout_s=DEADLINE_S,
        )
        self.api = APIServers(settings, socket_path, None, log=log, on_failure=lambda failure: True)
        self.engine.begin()
        announce(arrival, Arrived((END_ID,), END_ID))
        await self.engine.wait_ready()
        self.api.begin()
        await self.api.wait_ready()

    @property
    def pid(self) -> int:
        (process,) = self.api.processes
        assert process.pid is not None
        return process.pid

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self.api.stop()
        await self.engine.stop()
        await self._client.__aexit__(None, None, None)
