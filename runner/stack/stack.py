"""The processes behind the APIs: the engine server, Triton and its front.

They start before the engine is complete. With NVIDIA's C++ backend in the slot there is no engine server:
Triton holds the engine, and the processes start once it is complete.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from engine.directory import Engine
from engine.kinds import KINDS
from engine.tar.manifest import Manifest
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.options import KV_EVENTS_OPTION
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import EngineServer
from runner.generation.admission import Admission
from runner.observability.meter import clear_folder, read_folder
from runner.observability.metrics import RUNNING, samples
from runner.settings.paths import engine_socket_path, make_runtime_dir, metrics_dir
from runner.settings.ports import LOOPBACK, TritonPorts
from runner.settings.settings import Settings
from runner.settings.triton_address import TritonAddress
from runner.supervision.child import Log
from runner.supervision.failures import FailureLog, FailureReport
from runner.supervision.supervised import SupervisedProcess
from runner.triton_server.command import TritonCommand
from runner.triton_server.front.supervisor import TritonFront
from runner.triton_server.install import cpp_backend_dir, install_triton
from runner.triton_server.model_names import SLOT
from runner.triton_server.model_repository import Rendered, render
from runner.triton_server.supervisor import TritonServer

_CHUNK_FACTOR = 8
"""Factor of ``Coalescing``: chunks have several tokens if they would take over an eighth of the time."""


class EngineStack:
    """The processes: call ``begin``, ``arrive`` once the engine is complete, and ``close`` at the end.

    ``unrecoverable`` is set when failures were too many; ``on_restart`` is called for each restart of Triton.
    """

    triton: TritonServer
    triton_url: str
    """URL of Triton itself: clients use the front."""
    requests: Admission

    def __init__(
        self, settings: Settings, log: Log, unrecoverable: asyncio.Event, on_restart: Callable[[], object]
    ) -> None:
        self._settings = settings
        self._log = log
        self._unrecoverable = unrecoverable
        self._on_restart = on_restart
        self._exits = AsyncExitStack()
        self._arrival: Path
        self._report: FailureReport
        self.processes: list[SupervisedProcess] = []
        self.engine: EngineServer | None = None
        """Client of the engine server; None with NVIDIA's C++ backend."""
        self._client: EngineClient | None = None
        self.cpp_backend: TritonAddress | None = None
        """Client of NVIDIA's C++ backend in Triton; None with an engine server."""

    @property
    def has_begun(self) -> bool:
        return bool(self.processes)

    @property
    def is_asleep(self) -> bool:
        return self._client is not None and self._client.is_asleep

    @property
    def engine_socket(self) -> Path | None:
        """Path where the engine server listens; None with NVIDIA's C++ backend."""
        return engine_socket_path(self._settings.triton_http_port) if self.engine else None

    async def begin(self, engine: Engine) -> None:
        """Start the processes, which then wait until ``engine`` is complete.

        NOTE: NVIDIA's C++ backend does not wait: begin with an engine that is complete.
        """
        settings, manifest = self._settings, engine.manifest
        port = settings.triton_http_port
        folder = make_runtime_dir(port)
        self._arrival = folder / "engine_arrival.json"
        self._arrival.unlink(missing_ok=True)
        install = install_triton(folder, settings.triton_backend_dir)
        repository = folder / "model_repository"
        cpp_backend = cpp_backend_dir(settings.triton_backend_dir)
        rendered = render(
            engine,
            repository,
            overrides=settings.server,
            cpp_backend=cpp_backend if KINDS[manifest.engine_kind].has_cpp_backend else None,
            engine_cache_dir=settings.engine_cache_dir,
            engine_socket=engine_socket_path(port),
            arrival=self._arrival,
        )
        clear_folder(metrics_dir(port))
        self._report = FailureReport(settings.log_format, partial(self._failure_facts, manifest))
        ports = TritonPorts.free()
        self.triton_url = ports.http_url
        num_ranks = manifest.world_size if rendered.is_cpp else 1
        self.triton = TritonServer(
            TritonCommand(install, repository, settings, ports, num_ranks),
            self._log,
            self._is_triton_waiting,
            self.failure_log().add,
            self._on_restart,
            has_engine=rendered.is_cpp,
        )
        if not rendered.is_cpp:
            client = await self._start_engine_server(engine, rendered)
            self.requests = Admission(client)
        front = TritonFront(
            settings, ports, manifest.engine_kind, self.engine_socket, self._log, self.failure_log().add
        )
        self._start(front)  # Before Triton, so that it ends after it.
        self._start(self.triton)
        if rendered.is_cpp:
            await self._connect_to_triton(ports)

    async def _connect_to_triton(self, ports: TritonPorts) -> None:
        """Open the client last, so that it is closed first: Triton waits for its clients to disconnect."""
        from runner.triton_server.nvidia_client import NvidiaClient  # gRPC's messages take time to import.

        self.cpp_backend = TritonAddress(host=LOOPBACK, port=ports.grpc, model=SLOT, is_external=False)
        client = NvidiaClient(self.cpp_backend, self._settings.triton_timeout_s)
        self.requests = Admission(await self._exits.enter_async_context(client))

    async def _start_engine_server(self, engine: Engine, rendered: Rendered) -> EngineClient:
        settings, engine_kind = self._settings, engine.manifest.engine_kind
        options = {**rendered.options, **settings.node_options(rendered.start_timeout_s)}
        if settings.kv_events_config is not None:
            options[KV_EVENTS_OPTION] = json.dumps(settings.kv_events_config)
        start = EngineStart(
            engine_kind=engine_kind,
            engine_dir=engine.path,
            options=options,
            arrival=self._arrival,
            hang_timeout_s=rendered.hang_timeout_s,
            metrics_dir=metrics_dir(settings.triton_http_port),
        )
        path = engine_socket_path(settings.triton_http_port)
        client = EngineClient(path, settings.triton_timeout_s, engine_kind, Coalescing(_CHUNK_FACTOR))
        self._client = client
        self.engine = EngineServer(
            settings.engine_python,
            start,
            path,
            client,
            self._log,
            self.failure_log().add,
            start_timeout_s=settings.engine_start_timeout_s(rendered.start_timeout_s),
        )
        await self._exits.enter_async_context(client)
        self._start(self.engine)
        return client

    def _start(self, process: SupervisedProcess) -> None:
        process.begin()
        self.processes.append(process)
        self._exits.push_async_callback(process.stop)

    def failure_log(self) -> FailureLog:
        """Return a new log, for one process. Call it after ``begin``."""
        limit = self._settings.failure_limit, self._settings.failure_window_s
        return FailureLog(self._report.line, *limit, self._log, self._unrecoverable)

    def check_start(self) -> None:
        """Raise the error of a start that failed."""
        for process in self.processes:
            process.check_start()

    async def arrive(self, arrived: Arrived) -> None:
        """Announce that the engine is complete, and wait until all are ready. Raises a CodedError."""
        announce(self._arrival, arrived)
        await asyncio.gather(*(process.wait_ready() for process in self.processes))

    async def close(self) -> None:
        """End the processes, even if their start has not ended or failed."""
        await self._exits.aclose()

    def kill(self) -> None:
        """End the processes and all they started now, from any thread: this process is about to end."""
        for process in self.processes:
            process.kill_now()

    def _is_triton_waiting(self) -> bool:
        """Return True while Triton's models wait for the engine."""
        return not self._arrival.exists() or (self.engine is not None and not self.engine.is_serving)

    def _failure_facts(self, manifest: Manifest) -> dict[str, object]:
        readings = read_folder(metrics_dir(self._settings.triton_http_port))
        running = [sample.value for each in readings for sample in samples(RUNNING, each.all)]
        return {
            "running_requests": int(sum(running)),
            "engine": manifest.model_dump(mode="json", exclude={"files"}),
        }
