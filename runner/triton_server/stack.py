"""Triton on one engine, supervised, with the clients of its slot; it may start before the engine is there."""

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
from runner.observability.tracing import triton_arguments
from runner.settings.paths import (
    make_runtime_dir,
    metrics_dir,
    openai_shapes_path,
    runtime_dir,
    slot_socket_path,
)
from runner.settings.settings import Settings
from runner.supervision.child import Log
from runner.supervision.failures import FailureLimit, FailureLog
from runner.supervision.flight_recorder import FlightRecorder, RequestShapes, read_shapes
from runner.triton_server.client import TritonClient
from runner.triton_server.command import TritonCommand
from runner.triton_server.heartbeat import watch_heartbeat
from runner.triton_server.install import cpp_backend_dir, install_triton
from runner.triton_server.model_repository import render
from runner.triton_server.server import TritonServer
from runner.triton_server.transport import open_transport


class TritonStack:
    """For an engine that is complete ``prepare`` and ``start``; else ``start_early``, then ``arrive``.

    ``unrecoverable`` is set when failures were too many; ``on_restart`` is called for each restart of Triton.
    """

    def __init__(
        self, settings: Settings, log: Log, unrecoverable: asyncio.Event, on_restart: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._log = log
        self._unrecoverable = unrecoverable
        self._on_restart = on_restart
        self._exits = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        """Triton's start, if it began before the engine was there."""
        self._shapes = RequestShapes("cog")
        self.server: TritonServer | None = None
        self.is_cpp = False
        """Whether NVIDIA's C++ backend fills the slot; known once prepared."""
        self.requests: RequestGuard
        self.client: TritonClient

    @property
    def has_begun_early(self) -> bool:
        return self._starting is not None

    @property
    def slot_socket(self) -> Path | None:
        """Where our slot listens for the runner; None with NVIDIA's C++ backend."""
        return None if self.is_cpp else slot_socket_path(self._settings.triton_http_port)

    def start_early(self, engine: Engine) -> None:
        """Start Triton, whose models and engine worker then wait until ``engine`` is announced."""
        self._arrival.unlink(missing_ok=True)
        self._starting = asyncio.create_task(self._start_without(engine), name="triton-start")

    def check_start(self) -> None:
        """Raise the error of an early start that failed."""
        if self._starting is not None and self._starting.done():
            self._starting.result()

    async def arrive(self, arrived: Arrived) -> None:
        """Announce the engine to an early start, and wait for its end."""
        assert self._starting is not None
        announce(self._arrival, arrived)
        await self._starting

    def prepare(self, engine: Engine, arrived: Arrived | None) -> None:
        """Make everything that Triton starts with. ``arrived``: None while the engine is being fetched."""
        settings = self._settings
        folder = make_runtime_dir(settings.triton_http_port)
        install = install_triton(folder, settings.triton_backend_dir)
        repository = folder / "model_repository"
        manifest = engine.manifest
        arrival = self._arrival if arrived is None else None
        cpp_backend = cpp_backend_dir(settings.triton_backend_dir)
        self.is_cpp = render(
            engine,
            repository,
            engine_python=settings.engine_python,
            end_id=arrived.end_id if arrived is not None else None,
            pad_id=arrived.pad_id if arrived is not None else None,
            overrides=settings.server,
            cpp_backend=cpp_backend if KINDS[manifest.engine_kind].has_cpp_backend else None,
            engine_cache_dir=settings.cache_dir / "engine_cache",
            slot_socket=slot_socket_path(settings.triton_http_port),
            arrival=arrival,
        )
        clear_folder(metrics_dir(settings.triton_http_port))
        records = settings.flight_recorder_dir or settings.cache_dir / "flight-recorder"
        openai_shapes_path(settings.triton_http_port).unlink(missing_ok=True)
        recorder = FlightRecorder(records, manifest.model_dump(mode="json"), self._last_requests)
        limit = FailureLimit(settings.failure_limit, settings.failure_window_s)
        num_ranks = manifest.world_size if self.is_cpp else 1
        arguments = triton_arguments(settings.otlp_traces_url, settings.service_name)
        server = TritonServer(
            TritonCommand(install, repository, settings.triton_ports, num_ranks, arguments),
            settings.triton_start_timeout_s,
            self._log,
            arrival,
            FailureLog(recorder.record, limit, self._log, self._unrecoverable).add,
        )
        server.on_restart = self._on_restart
        self.server = server

    async def start(self) -> None:
        """Start what was prepared, and wait until it is ready. Raises a CodedError."""
        server, settings = self.server, self._settings
        assert server is not None, "not prepared"
        await server.start()
        self._exits.push_async_callback(server.stop)
        transport = open_transport(
            settings.triton_ports.http_url,
            self.slot_socket,
            settings.triton_timeout_s,
            lambda: server.down_reason,
            self._shapes,
        )
        self.requests, self.client = await self._exits.enter_async_context(transport)
        watching = watch_heartbeat(server, self.client, settings.triton_hang_timeout_s)
        heartbeat = asyncio.create_task(watching, name="triton-heartbeat")
        self._exits.callback(heartbeat.cancel)

    async def close(self) -> None:
        """End Triton, even if its start has not ended or failed."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._exits.aclose()

    def kill(self) -> None:
        """End Triton and all it started now, from any thread: this process is about to end."""
        if self.server is not None:
            self.server.kill_now()

    def _last_requests(self) -> list[dict[str, Any]]:
        """Shapes of both APIs' requests in the order of their start."""
        shapes = [*self._shapes.read(), *read_shapes(openai_shapes_path(self._settings.triton_http_port))]
        return sorted(shapes, key=itemgetter("started_s"))

    async def _start_without(self, engine: Engine) -> None:
        self.prepare(engine, None)
        await self.start()

    @property
    def _arrival(self) -> Path:
        return runtime_dir(self._settings.triton_http_port) / "engine_arrival.json"
