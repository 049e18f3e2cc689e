"""Everything a runner holds while it serves: engine, Triton, client. Opened in setup, closed at the end."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from engine.directory import Engine, load
from engine.gpu import visible_gpus
from engine.manifest import Manifest
from engine.preflight import Machine, check_runs_here, installed_version, needs_gpu
from engine.progress import Progress
from engine.store import open_engine
from errors.prompt import InvalidSetting, MissingRequirement
from runner.child_process import Log
from runner.generation import Generation, GenerationRequest, SamplingInputs
from runner.logs import JSON, RequestLog, log_json, log_text
from runner.meter import Meter, RequestMeter
from runner.metrics import TRITON_RESTARTS
from runner.metrics_text import clear_folder
from runner.model_facts import ModelFacts, load_model_facts
from runner.model_repository import CPP_BACKEND, SLOT, render
from runner.openai_server import OpenAIServer
from runner.runtime_dir import make_runtime_dir, metrics_dir
from runner.settings import Settings
from runner.tracing import Tracing, open_tracing, triton_arguments
from runner.triton_client import TritonClient
from runner.triton_install import CPP_LIBRARY, cpp_backend_dir, install_triton
from runner.triton_server import TritonServer

_TEST_PROMPT = "hi"
_TEST_TOKENS = 3


class Service:
    """Use ``open`` and ``close``; between them ``generate`` is ready."""

    def __init__(self, settings: Settings, log: Log | None = None, progress: Progress | None = None) -> None:
        self._settings = settings
        self._is_log_json = settings.log_format == JSON
        self._log = log or (log_json if self._is_log_json else log_text)
        self._progress = progress
        self._exits = AsyncExitStack()
        self._is_cpp = False
        self.engine: Engine
        self.model: ModelFacts
        self.triton: TritonServer
        self.client: TritonClient
        self.meter = Meter("cog")
        self._tracing: Tracing | None = None
        self.openai: OpenAIServer | None = None

    async def open(self) -> None:
        """Get the engine, start Triton on it and generate once. Raises a CodedError."""
        started_s = time.monotonic()
        try:
            self.engine = await asyncio.to_thread(self._open_engine)
            self._tell_engine()
            self.model = load_model_facts(self.engine, self._settings)
            await self._start_triton()
            await self._test()
            self._open_meter()
            self._tracing = open_tracing(self._settings, self._model_name())
            if self.openai is not None:
                await self.openai.wait_ready()
        except BaseException:
            await self.close()
            raise
        self._log(f"ready after {time.monotonic() - started_s:.1f} s")

    async def close(self) -> None:
        await self._exits.aclose()

    def generate(
        self,
        request: GenerationRequest,
        *,
        asks_slot: bool = False,
        arrived_s: float | None = None,
        request_id: str = "",
    ) -> Generation:
        """``asks_slot``: also for what only the slot knows of the request's time budget. ``arrived_s``: when
        the request came, by ``perf_counter``; else now. ``request_id`` is for logs and traces."""
        trace = self._tracing.begin(request) if self._tracing else None
        return Generation(
            request,
            self.model,
            self.client,
            is_slot_ours=not self._is_cpp,
            asks_slot=asks_slot or (trace is not None and trace.is_recording),
            trace=trace,
            log=RequestLog("cog") if self._is_log_json else None,
            # Only where somebody reads it: Triton puts it into each of its events.
            request_id=request_id if self._is_log_json or trace is not None else "",
            meter=RequestMeter(self.meter, arrived_s),
        )

    async def is_healthy(self) -> bool:
        """True only while Triton and the engine behind the slot answer."""
        return self.triton.down_reason is None and await self.client.is_slot_answering()

    def _open_engine(self) -> Engine:
        settings = self._settings
        if settings.weights:
            return open_engine(
                settings.weights, settings.cache_dir, check=self.check_runs_here, progress=self._progress
            )
        engine = load(settings.engine_dir)
        self.check_runs_here(engine.manifest)
        return engine

    def check_runs_here(self, manifest: Manifest) -> None:
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

    async def _start_triton(self) -> None:
        settings = self._settings
        folder = make_runtime_dir(settings.triton_http_port)
        install = install_triton(folder, settings.triton_backend_dir)
        repository = folder / "model_repository"
        manifest = self.engine.manifest
        cpp_backend = cpp_backend_dir(settings.triton_backend_dir)
        self._is_cpp = render(
            self.engine,
            repository,
            engine_python=settings.engine_python,
            end_id=self.model.end_ids[0],
            pad_id=self.model.pad_id,
            overrides=settings.server,
            cpp_backend=cpp_backend if manifest.engine_kind == "tensorrt_llm" else None,
            engine_cache_dir=settings.cache_dir / "engine_cache",
        )
        clear_folder(metrics_dir(settings.triton_http_port))
        await self._start_openai()
        ports = settings.triton_ports
        num_ranks = manifest.world_size if self._is_cpp else 1
        self.triton = TritonServer(
            install, repository, ports, settings.triton_start_timeout_s, self._log, num_ranks
        )
        self.triton.more_arguments = triton_arguments(settings)
        self.triton.on_restart = lambda: self.meter.add(TRITON_RESTARTS)
        await self.triton.start()
        self._exits.push_async_callback(self.triton.stop)
        client = TritonClient(ports.http_url, settings.triton_timeout_s, lambda: self.triton.down_reason)
        self.client = await self._exits.enter_async_context(client)

    def _open_meter(self) -> None:
        """From now on what is counted can be read: our own test is nobody's request."""
        folder = metrics_dir(self._settings.triton_http_port)
        self.meter = Meter("cog", folder)
        self._exits.callback(self.meter.close)

    async def _start_openai(self) -> None:
        """Before Triton, which takes longer to start."""
        if not self._settings.openai_port:
            return
        settings = self._settings.model_copy(update={"engine_dir": self.engine.path, "weights": None})
        server = OpenAIServer(settings, is_slot_ours=not self._is_cpp, log=self._log)
        await server.start()
        self._exits.push_async_callback(server.stop)
        self.openai = server

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

    def _model_name(self) -> str:
        return self.engine.manifest.model_id or self.engine.manifest.engine_kind

    def _tell_engine(self) -> None:
        manifest = self.engine.manifest
        source = f" from {manifest.model_id}" if manifest.model_id else ""
        self._log(f"engine: {manifest.engine_kind}{source} at {self.engine.path}")
        for warning in self.engine.warnings:
            self._log(f"warning: {warning}")
