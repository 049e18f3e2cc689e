"""The API server and a paced engine without Triton and Cog, in front of which an API starts in seconds."""

from pathlib import Path

from engine.directory import load
from runner.api.supervisor import APIServers
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.client import EngineClient
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import EngineServer
from runner.settings.paths import engine_socket_path, metrics_dir
from tests.runner.api.apis import APIClient
from tests.runner.api.processes import settings_of
from tests.runner.paced_engine import END_ID, PacedModel
from tests.runner.servers import DEADLINE_S, LoopThread


class APIAlone(APIClient):
    def __init__(self, model: PacedModel, folder: Path, **environment: str) -> None:
        self._settings, port = settings_of(folder, model, **environment)
        super().__init__(port)
        self.log: list[str] = []
        self._loop = LoopThread()
        self._loop.run(self._open(self._settings.triton_http_port))

    async def _open(self, triton_port: int) -> None:
        settings = self._settings
        engine = load(settings.engine_dir)
        socket_path = engine_socket_path(triton_port)
        arrival = metrics_dir(triton_port).with_name("engine_arrival.json")
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

    def close(self) -> None:
        super().close()
        self._loop.run(self._close())
        self._loop.end()

    async def _close(self) -> None:
        await self.api.stop()
        await self.engine.stop()
        await self._client.__aexit__(None, None, None)
