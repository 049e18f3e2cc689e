"""Triton on one engine, supervised, with the clients of its slot; it starts before the engine is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from operator import itemgetter
from pathlib import Path
from typing import Any

from engine.directory import Engine
from engine.kinds import KINDS
from runner.engines.protocol.engine_ready import Arrived, announce
from runner.generation.admission import RequestGuard
from runner.observability.meter import clear_folder
from runner.settings.paths import make_runtime_dir, metrics_dir, openai_shapes_path, slot_socket_path
from runner.settings.settings import Settings
from runner.supervision.child import Log
from runner.supervision.failures import FailureLog
from runner.supervision.flight_recorder import FlightRecorder, RequestShapes, read_shapes
from runner.triton_server.client import TritonClient
from runner.triton_server.command import TritonCommand
from runner.triton_server.install import cpp_backend_dir, install_triton
from runner.triton_server.model_repository import render
from runner.triton_server.server import TritonServer
from runner.triton_server.transport import open_transport


class TritonStack:
    """Call ``begin``, ``arrive`` once the engine is complete, and ``close`` at the end.

    ``unrecoverable`` is set when failures were too many; ``on_restart`` is called for each restart of Triton.
    """

    server: TritonServer
    requests: RequestGuard
    client: TritonClient

    def __init__(
        self, settings: Settings, log: Log, unrecoverable: asyncio.Event, on_restart: Callable[[], object]
    ) -> None:
        self._settings = settings
        self._log = log
        self._unrecoverable = unrecoverable
        self._on_restart = on_restart
        self._exits = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._arrival: Path
        self._recorder: FlightRecorder
        self._shapes = RequestShapes("cog")
        self.is_cpp = False
        """Whether NVIDIA's C++ backend fills the slot; known once begun."""

    @property
    def has_begun(self) -> bool:
        return self._starting is not None

    @property
    def slot_socket(self) -> Path | None:
        """Where our slot listens for the runner; None with NVIDIA's C++ backend."""
        return None if self.is_cpp else slot_socket_path(self._settings.triton_http_port)

    def begin(self, engine: Engine) -> None:
        """Start Triton, whose models and engine worker then wait until ``engine`` is complete.

        NOTE: NVIDIA's C++ backend does not wait: begin with an engine that is complete.
        """
        settings, manifest = self._settings, engine.manifest
        folder = make_runtime_dir(settings.triton_http_port)
        self._arrival = folder / "engine_arrival.json"
        self._arrival.unlink(missing_ok=True)
        install = install_triton(folder, settings.triton_backend_dir)
        repository = folder / "model_repository"
        cpp_backend = cpp_backend_dir(settings.triton_backend_dir)
        self.is_cpp = render(
            engine,
            repository,
            engine_python=settings.engine_python,
            overrides=settings.server,
            cpp_backend=cpp_backend if KINDS[manifest.engine_kind].has_cpp_backend else None,
            engine_cache_dir=settings.cache_dir / "engine_cache",
            slot_socket=slot_socket_path(settings.triton_http_port),
            arrival=self._arrival,
        )
        clear_folder(metrics_dir(settings.triton_http_port))
        records = settings.flight_recorder_dir or settings.cache_dir / "flight-recorder"
        openai_shapes_path(settings.triton_http_port).unlink(missing_ok=True)
        self._recorder = FlightRecorder(records, manifest.model_dump(mode="json"), self._last_requests)
        num_ranks = manifest.world_size if self.is_cpp else 1
        self.server = TritonServer(
            TritonCommand(install, repository, settings, num_ranks),
            self._log,
            self._arrival,
            self.failure_log().add,
            self._on_restart,
        )
        self._starting = asyncio.create_task(self._start(), name="triton-start")

    def failure_log(self) -> FailureLog:
        """A new one, for one process. Call once begun."""
        limit = self._settings.failure_limit, self._settings.failure_window_s
        return FailureLog(self._recorder.record, *limit, self._log, self._unrecoverable)

    def check_start(self) -> None:
        """Raise the error of a start that failed."""
        if self._starting is not None and self._starting.done():
            self._starting.result()

    async def arrive(self, arrived: Arrived) -> None:
        """Announce that the engine is complete, and wait until Triton is ready. Raises a CodedError."""
        assert self._starting is not None, "not begun"
        announce(self._arrival, arrived)
        await self._starting

    async def close(self) -> None:
        """End Triton, even if its start has not ended or failed."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._exits.aclose()

    def kill(self) -> None:
        """End Triton and all it started now, from any thread: this process is about to end."""
        if self.has_begun:
            self.server.kill_now()

    async def _start(self) -> None:
        server, settings = self.server, self._settings
        await server.start()
        self._exits.push_async_callback(server.stop)
        transport = open_transport(
            settings.triton_url,
            self.slot_socket,
            settings.triton_timeout_s,
            lambda: server.down_reason,
            self._shapes,
        )
        self.requests, self.client = await self._exits.enter_async_context(transport)
        server.client = self.client

    def _last_requests(self) -> list[dict[str, Any]]:
        """Shapes of both APIs' requests in the order of their start."""
        shapes = [*self._shapes.read(), *read_shapes(openai_shapes_path(self._settings.triton_http_port))]
        return sorted(shapes, key=itemgetter("started_s"))
