"""Everything a runner holds while it serves: engine, Triton, client. Opened in setup, closed at the end."""

from __future__ import annotations

import asyncio
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
from runner.child_process import Log
from runner.failures import Failure, FailureLimit
from runner.flight_recorder import FlightRecorder
from runner.generation import Generation, GenerationRequest, SamplingInputs
from runner.logs import JSON, RequestLog, log_json, log_text
from runner.meter import Meter, RequestMeter
from runner.metrics import TRITON_RESTARTS
from runner.metrics_text import clear_folder
from runner.model_facts import ModelFacts, load_model_facts
from runner.model_repository import CPP_BACKEND, SLOT, render
from runner.openai_server import OpenAIServer, check_openai_port_free
from runner.request_guard import RequestGuard
from runner.runtime_dir import make_runtime_dir, metrics_dir, runtime_dir, slot_socket_path
from runner.settings import Settings
from runner.slot_client import SlotClient
from runner.tracing import Tracing, open_tracing, triton_arguments
from runner.triton_client import TritonClient
from runner.triton_install import CPP_LIBRARY, cpp_backend_dir, install_triton
from runner.triton_server import TritonServer

_HEARTBEAT_S = 2.0
_FEWEST_SILENCES = 3
"""Of Triton, before it counts as hanging: a pause of ours, not its, is one at most."""
_DRAIN_POLL_S = 0.02
_END_ALL_S = 2.0
_DROP_S = 0.3
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
        self._failure_limit = FailureLimit(settings.failure_limit, settings.failure_window_s)
        self._recorder: FlightRecorder
        self.hopeless = asyncio.Event()
        """Set when failures were too many: who runs us has to end the process, with an error."""
        self._starting: asyncio.Task[None] | None = None
        """Triton's start, if it began before the engine was there."""
        self._is_closed = False
        self._is_cpp = False
        self.is_stopping = False
        self.engine: Engine
        self.model: ModelFacts
        self._triton: TritonServer | None = None
        self.client: TritonClient
        self.requests: RequestGuard
        self.meter = Meter("cog")
        self._tracing: Tracing | None = None
        self.openai: OpenAIServer | None = None

    @property
    def triton(self) -> TritonServer:
        assert self._triton is not None, "not open"
        return self._triton

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
                await self._start_openai()
                announce(self._arrival, arrived)
                await self._starting
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
        self._is_closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._exits.aclose()

    def kill(self) -> None:
        """End Triton and all it started now, from any thread; we are about to end, too."""
        if self._triton is not None:
            self._triton.kill_now()

    def generate(
        self,
        request: GenerationRequest,
        *,
        asks_slot: bool = False,
        arrived_s: float | None = None,
        request_id: str = "",
    ) -> Generation:
        """``asks_slot``: also for what only the slot knows of the request's time budget. ``arrived_s``: when
        the request came, by ``perf_counter``; else now. ``request_id`` is for logs and traces.

        Raises E1104 for an adapter's name where names mean nothing: NVIDIA's backend has no such tensor, and
        Triton drops what is none of a model's tensors.
        """
        check_adapter_name(request.lora_name, self.engine.manifest.engine_kind)
        trace = self._tracing.begin(request, response_id=request_id) if self._tracing else None
        return Generation(
            request,
            self.model,
            self.requests,
            is_slot_ours=not self._is_cpp,
            asks_slot=asks_slot or (trace is not None and trace.is_recording),
            trace=trace,
            log=RequestLog("cog") if self._is_log_json else None,
            # Only where somebody reads it: Triton puts it into each of its events.
            request_id=request_id if self._is_log_json or trace is not None else "",
            meter=RequestMeter(self.meter, arrived_s),
        )

    async def is_healthy(self) -> bool:
        """True only while Triton and the engine behind the slot answer, and new requests are taken."""
        if self.is_stopping:
            return False
        return self.triton.down_reason is None and await self.client.is_slot_answering()

    async def drain(self) -> None:
        """Take no new requests, let what runs end within the grace period, then end it with E2110."""
        self.is_stopping = True
        grace_s = self._settings.stop_grace_s
        self.requests.refuse("it was asked to")
        self._log(f"stopping: {self.requests.num_running} requests have {grace_s:g} s to end")
        openai = asyncio.create_task(self.openai.drain()) if self.openai is not None else None
        if not await self._is_drained(grace_s):
            self._log(f"stopping: {self.requests.num_running} requests are ended")
            self.requests.end_all(f"it was asked to, and the grace period of {grace_s:g} s is over")
            await self._is_drained(_END_ALL_S)
            # NOTE: Triton may crash at its end while it still drops requests whose clients have gone.
            await asyncio.sleep(_DROP_S)
        if openai is not None:
            await openai

    async def _is_drained(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self.requests.num_running and time.monotonic() < deadline_s:  # noqa: ASYNC110 - polled at the end alone
            await asyncio.sleep(_DRAIN_POLL_S)
        return not self.requests.num_running

    def _failed(self, failure: Failure) -> bool:
        """Record a failure; False once there were too many."""
        try:
            self._log(f"flight recorder: {self._recorder.record(failure)}")
        except OSError as exc:
            self._log(f"warning: the flight recorder could not write: {exc}")
        if self._failure_limit.is_reached():
            limit, window_s = self._settings.failure_limit, self._settings.failure_window_s
            self._log(f"{limit} failures within {window_s:g} s (FAILURE_LIMIT, FAILURE_WINDOW): giving up")
            self.hopeless.set()
        return not self.hopeless.is_set()

    async def _watch_heart(self) -> None:
        """Have Triton killed when it has not answered for too long while it should."""
        timeout_s = self._settings.triton_hang_timeout_s
        heard_s, silences = time.monotonic(), 0
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            if self.triton.down_reason is not None or await self.client.is_answering():
                heard_s, silences = time.monotonic(), 0
                continue
            silences += 1
            if time.monotonic() - heard_s > timeout_s and silences >= _FEWEST_SILENCES:
                self.triton.kill(f"it did not answer for {timeout_s:g} s")
                heard_s, silences = time.monotonic(), 0

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
                check=self.check_runs_here,
                on_the_way=start_early,
                progress=self._fetched,
            )
        engine = load(settings.engine_dir)
        self.check_runs_here(engine.manifest)
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
        if self._settings.openai_port:
            check_openai_port_free(self._settings)
        self._arrival.unlink(missing_ok=True)
        self._starting = asyncio.create_task(self._start_triton(engine, None), name="triton-start")

    @property
    def _arrival(self) -> Path:
        return runtime_dir(self._settings.triton_http_port) / "engine_arrival.json"

    def _may_be_cpp(self, manifest: Manifest) -> bool:
        """NVIDIA's C++ backend reads the engine at once."""
        return (
            manifest.engine_kind == "tensorrt_llm"
            and cpp_backend_dir(self._settings.triton_backend_dir) is not None
        )

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

    async def _start_triton(self, engine: Engine, arrived: Arrived | None) -> None:
        """``arrived`` is None if the engine is still on its way."""
        settings = self._settings
        folder = make_runtime_dir(settings.triton_http_port)
        install = install_triton(folder, settings.triton_backend_dir)
        repository = folder / "model_repository"
        slot_socket = slot_socket_path(settings.triton_http_port)
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
            slot_socket=slot_socket,
            arrival=arrival,
        )
        clear_folder(metrics_dir(settings.triton_http_port))
        if arrived is not None:
            await self._start_openai()
        ports = settings.triton_ports
        num_ranks = manifest.world_size if self._is_cpp else 1
        records = settings.flight_recorder_dir or settings.cache_dir / "flight-recorder"
        self._recorder = FlightRecorder(records, manifest.model_dump(mode="json"))
        self._triton = TritonServer(
            install,
            repository,
            ports,
            settings.triton_start_timeout_s,
            self._log,
            num_ranks,
            arrival,
            self._failed,
        )
        self.triton.more_arguments = triton_arguments(settings)
        self.triton.on_restart = lambda: self.meter.add(TRITON_RESTARTS)
        await self.triton.start()
        self._exits.push_async_callback(self.triton.stop)
        client = TritonClient(ports.http_url, settings.triton_timeout_s, lambda: self.triton.down_reason)
        self.client = await self._exits.enter_async_context(client)
        way: TritonClient | SlotClient = client
        if not self._is_cpp:
            slot = SlotClient(slot_socket, settings.triton_timeout_s, lambda: self.triton.down_reason)
            way = await self._exits.enter_async_context(slot)
        self.requests = RequestGuard(way, client, self._recorder)
        heart = asyncio.create_task(self._watch_heart(), name="triton-heart")
        self._exits.callback(heart.cancel)

    def _open_meter(self) -> None:
        """From now on what is counted can be read: our own test is nobody's request."""
        folder = metrics_dir(self._settings.triton_http_port)
        self.meter = Meter("cog", folder)
        self._exits.callback(self.meter.close)

    async def _start_openai(self) -> None:
        """As soon as the engine is there: it starts beside Triton."""
        if not self._settings.openai_port:
            return
        slot_socket = None if self._is_cpp else slot_socket_path(self._settings.triton_http_port)
        settings = self._settings.model_copy(update={"engine_dir": self.engine.path, "weights": None})
        server = OpenAIServer(settings, slot_socket, log=self._log)
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
