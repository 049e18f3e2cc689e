"""Everything a runner holds while it serves: engine, Triton, client. Opened in setup, closed at the end."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from engine.directory import Engine, load
from engine.gpu import visible_gpus
from engine.manifest import Manifest
from engine.preflight import Machine, check_runs_here, installed_version, needs_gpu
from engine.progress import Progress
from engine.store import open_engine
from errors.prompt import InvalidSetting, MissingRequirement
from runner.adapter_name import check_adapter_name
from runner.arrival import Arrived, announce
from runner.generation import Generation, GenerationRequest, SamplingInputs
from runner.model_facts import ModelFacts, load_model_facts
from runner.model_repository import CPP_BACKEND, SLOT, render
from runner.settings import Settings
from runner.time_budget import TimeBudget, Untold
from runner.triton_client import TritonClient
from runner.triton_install import CPP_LIBRARY, cpp_backend_dir, install_triton
from runner.triton_ports import TritonPorts
from runner.triton_server import Log, TritonServer

_TEST_PROMPT = "hi"
_TEST_TOKENS = 3


def log_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Service:
    """Use ``open`` and ``close``; between them ``generate`` is ready."""

    def __init__(
        self, settings: Settings, log: Log = log_to_stderr, progress: Progress | None = None
    ) -> None:
        self._settings = settings
        self._log = log
        self._progress = progress
        self._exits = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        """Triton's start, if it began before the engine was there."""
        self._is_closed = False
        self._is_cpp = False
        self._untold: Untold
        self.engine: Engine
        self.model: ModelFacts
        self.triton: TritonServer
        self.client: TritonClient

    async def open(self) -> None:
        """Get the engine, start Triton on it and generate once. Raises a CodedError."""
        started_s = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
            self.engine = await asyncio.to_thread(self._open_engine, loop)
            self._tell_engine()
            self.model = load_model_facts(self.engine, self._settings)
            arrived = Arrived(end_id=self.model.end_ids[0], pad_id=self.model.pad_id)
            if self._starting is None:
                await self._start_triton(self.engine, arrived)
            else:
                announce(self._arrival, arrived)
                await self._starting
            await self._test()
        except BaseException:
            await self.close()
            raise
        self._log(f"ready after {time.monotonic() - started_s:.1f} s")

    async def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._exits.aclose()

    def generate(self, request: GenerationRequest, *, asks_slot: bool = False) -> Generation:
        """``asks_slot``: also for what only the slot knows of the request's time budget.

        Raises E1104 for an adapter's name where names mean nothing: NVIDIA's backend has no such tensor, and
        Triton drops what is none of a model's tensors.
        """
        check_adapter_name(request.lora_name, self.engine.manifest.engine_kind)
        return Generation(
            request,
            self.model,
            self.client,
            tells_reason=not self._is_cpp,
            budget=TimeBudget(self._untold),
            asks_slot=asks_slot,
        )

    async def is_healthy(self) -> bool:
        """True only while Triton and the engine behind the slot answer."""
        return self.triton.down_reason is None and await self.client.is_slot_answering()

    def _open_engine(self, loop: asyncio.AbstractEventLoop) -> Engine:
        """Done in a thread; ``loop`` is the one to start Triton in."""

        def start_early(engine: Engine) -> None:
            if not self._may_be_cpp(engine.manifest):
                asyncio.run_coroutine_threadsafe(self._start_early(engine), loop).result()

        settings = self._settings
        limit_gib = settings.cache_limit_gib
        if settings.weights:
            return open_engine(
                settings.weights,
                settings.cache_dir,
                limit_bytes=None if limit_gib is None else int(limit_gib * (1 << 30)),
                check=self._check_runs_here,
                on_the_way=start_early,
                progress=self._fetched,
            )
        engine = load(settings.engine_dir)
        self._check_runs_here(engine.manifest)
        return engine

    def _fetched(self, done_bytes: int, total_bytes: int | None, what: str, /) -> None:
        """Why go on fetching if Triton could not be started?"""
        if self._starting is not None and self._starting.done():
            self._starting.result()
        if self._progress is not None:
            self._progress(done_bytes, total_bytes, what)

    async def _start_early(self, engine: Engine) -> None:
        """Start Triton, whose models and engine worker then wait until ``engine`` is announced."""
        if self._is_closed:
            return  # Whoever opened us gave up, which a download does not notice at once.
        self._arrival.unlink(missing_ok=True)
        self._starting = asyncio.create_task(self._start_triton(engine, None), name="triton-start")

    @property
    def _arrival(self) -> Path:
        return _runtime_dir(self._settings.triton_http_port) / "engine_arrival.json"

    def _may_be_cpp(self, manifest: Manifest) -> bool:
        """NVIDIA's C++ backend reads the engine at once."""
        return (
            manifest.engine_kind == "tensorrt_llm"
            and cpp_backend_dir(self._settings.triton_backend_dir) is not None
        )

    def _check_runs_here(self, manifest: Manifest) -> None:
        """Raise for an engine that this machine can't run, before it is fetched whole."""
        settings = self._settings
        self._check_world_size(manifest.world_size)
        # NVIDIA's C++ backend brings a TensorRT-LLM of its own.
        has_own_library = cpp_backend_dir(settings.triton_backend_dir) is not None
        if settings.server.get(SLOT, {}).get("triton_backend") == CPP_BACKEND and not has_own_library:
            raise MissingRequirement(
                what=f"tensorrtllm/{CPP_LIBRARY}, which triton_backend: tensorrtllm asks for,",
                remedy="set TRITONSERVER_BACKEND_DIR to the folder of NVIDIA's backends",
            )
        version = None if has_own_library else installed_version(settings.engine_python)
        gpus = visible_gpus() if needs_gpu(manifest) else ()
        check_runs_here(manifest, Machine(gpus, version))

    def _check_world_size(self, built_for: int) -> None:
        if self._settings.world_size not in (None, built_for):
            raise InvalidSetting(
                name="WORLD_SIZE",
                expected=f"{built_for}, the number of GPUs the engine was built for, or unset",
                value=self._settings.world_size,
            )

    async def _start_triton(self, engine: Engine, arrived: Arrived | None) -> None:
        """``arrived`` is None if the engine is still on its way."""
        settings = self._settings
        runtime_dir = _runtime_dir(settings.triton_http_port)
        install = install_triton(runtime_dir, settings.triton_backend_dir)
        repository = runtime_dir / "model_repository"
        manifest = engine.manifest
        arrival = self._arrival if arrived is None else None
        cpp_backend = cpp_backend_dir(settings.triton_backend_dir)
        self._is_cpp = render(
            engine,
            repository,
            engine_python=settings.engine_python,
            end_id=arrived.end_id if arrived is not None else None,
            pad_id=arrived.pad_id if arrived is not None else None,
            overrides=settings.server,
            cpp_backend=cpp_backend if manifest.engine_kind == "tensorrt_llm" else None,
            engine_cache_dir=settings.cache_dir / "engine_cache",
            arrival=arrival,
        )
        self._untold = Untold(is_slot_ours=not self._is_cpp)
        ports = TritonPorts(
            settings.triton_host,
            settings.triton_http_port,
            settings.triton_grpc_port,
            settings.triton_metrics_port,
        )
        num_ranks = manifest.world_size if self._is_cpp else 1
        self.triton = TritonServer(
            install, repository, ports, settings.triton_start_timeout_s, self._log, num_ranks, arrival
        )
        await self.triton.start()
        self._exits.push_async_callback(self.triton.stop)
        client = TritonClient(ports.http_url, settings.triton_timeout_s, lambda: self.triton.down_reason)
        self.client = await self._exits.enter_async_context(client)

    async def _test(self) -> None:
        """One real prediction before anyone is told that we are ready."""
        request = GenerationRequest(
            prompt=_TEST_PROMPT,
            max_tokens=_TEST_TOKENS,
            min_tokens=0,
            stop_sequences=(),
            sampling=SamplingInputs(temperature=0),
        )
        generation = self.generate(request)
        async for _ in generation.text():
            pass
        self._log(f"test prediction: {generation.output_token_count} tokens")

    def _tell_engine(self) -> None:
        manifest = self.engine.manifest
        source = f" from {manifest.model_id}" if manifest.model_id else ""
        self._log(f"engine: {manifest.engine_kind}{source} at {self.engine.path}")
        for warning in self.engine.warnings:
            self._log(f"warning: {warning}")


def _runtime_dir(http_port: int) -> Path:
    """A folder for what is made at start, one per port and user: used again, so nothing piles up."""
    parent = Path(tempfile.gettempdir()) / f"cog-triton-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.stat().st_uid != os.getuid():
        raise InvalidSetting(
            name="TMPDIR", expected=f"a folder where {parent.name} is ours", value=str(parent.parent)
        )
    path = parent / str(http_port)
    path.mkdir(exist_ok=True)
    return path
