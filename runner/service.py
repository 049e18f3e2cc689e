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
from runner.child_process import Log
from runner.failures import Failure, FailureLimit
from runner.flight_recorder import FlightRecorder
from runner.generation import Generation, GenerationRequest, SamplingInputs
from runner.model_facts import ModelFacts, load_model_facts
from runner.model_repository import CPP_BACKEND, SLOT, render
from runner.openai_server import OpenAIServer
from runner.request_guard import RequestGuard
from runner.settings import Settings
from runner.slot_client import SlotClient
from runner.time_budget import TimeBudget, Untold
from runner.triton_client import TritonClient
from runner.triton_install import CPP_LIBRARY, cpp_backend_dir, install_triton
from runner.triton_ports import TritonPorts
from runner.triton_server import TritonServer

_HEARTBEAT_S = 2.0
_FEWEST_SILENCES = 3
"""Of Triton, before it counts as hanging: a pause of ours, not its, is one at most."""
_DRAIN_POLL_S = 0.02
_END_ALL_S = 2.0
_DROP_S = 0.3
_TEST_PROMPT = "hi"
_TEST_TOKENS = 3
_LONGEST_SOCKET_PATH_BYTES = 107
"""Linux's ``sun_path`` without its final zero."""


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
        self._failure_limit = FailureLimit(settings.failure_limit, settings.failure_window_s)
        self._recorder: FlightRecorder
        self.hopeless = asyncio.Event()
        """Set when failures were too many: who runs us has to end the process, with an error."""
        self._is_cpp = False
        self.is_stopping = False
        self._untold: Untold
        self.engine: Engine
        self.model: ModelFacts
        self._triton: TritonServer | None = None
        self.client: TritonClient
        self.requests: RequestGuard
        self.openai: OpenAIServer | None = None

    @property
    def triton(self) -> TritonServer:
        assert self._triton is not None, "not open"
        return self._triton

    async def open(self) -> None:
        """Get the engine, start Triton on it and generate once. Raises a CodedError."""
        started_s = time.monotonic()
        try:
            self.engine = await asyncio.to_thread(self._open_engine)
            self._tell_engine()
            self.model = load_model_facts(self.engine, self._settings)
            await self._start_triton()
            await self._test()
            if self.openai is not None:
                await self.openai.wait_ready()
        except BaseException:
            await self.close()
            raise
        self._log(f"ready after {time.monotonic() - started_s:.1f} s")

    async def close(self) -> None:
        await self._exits.aclose()

    def kill(self) -> None:
        """End Triton and all it started now, from any thread; we are about to end, too."""
        if self._triton is not None:
            self._triton.kill_now()

    def generate(self, request: GenerationRequest, *, asks_slot: bool = False) -> Generation:
        """``asks_slot``: also for what only the slot knows of the request's time budget."""
        return Generation(
            request,
            self.model,
            self.requests,
            tells_reason=not self._is_cpp,
            budget=TimeBudget(self._untold),
            asks_slot=asks_slot,
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

    def _open_engine(self) -> Engine:
        settings = self._settings
        if settings.weights:
            return open_engine(
                settings.weights, settings.cache_dir, check=self._check_runs_here, progress=self._progress
            )
        engine = load(settings.engine_dir)
        self._check_runs_here(engine.manifest)
        return engine

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

    async def _start_triton(self) -> None:
        settings = self._settings
        runtime_dir = _runtime_dir(settings.triton_http_port)
        install = install_triton(runtime_dir, settings.triton_backend_dir)
        repository = runtime_dir / "model_repository"
        slot_socket: Path | None = _socket_path(runtime_dir)
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
            slot_socket=slot_socket,
        )
        slot_socket = None if self._is_cpp else slot_socket
        self._untold = Untold(is_slot_ours=not self._is_cpp)
        await self._start_openai(slot_socket)
        ports = TritonPorts(
            settings.triton_host,
            settings.triton_http_port,
            settings.triton_grpc_port,
            settings.triton_metrics_port,
        )
        num_ranks = manifest.world_size if self._is_cpp else 1
        folder = settings.flight_recorder_dir or settings.cache_dir / "flight-recorder"
        self._recorder = FlightRecorder(folder, manifest.model_dump(mode="json"))
        self._triton = TritonServer(
            install, repository, ports, settings.triton_start_timeout_s, self._log, num_ranks, self._failed
        )
        await self.triton.start()
        self._exits.push_async_callback(self.triton.stop)
        client = TritonClient(ports.http_url, settings.triton_timeout_s, lambda: self.triton.down_reason)
        self.client = await self._exits.enter_async_context(client)
        way: TritonClient | SlotClient = client
        if slot_socket is not None:
            slot = SlotClient(slot_socket, settings.triton_timeout_s, lambda: self.triton.down_reason)
            way = await self._exits.enter_async_context(slot)
        self.requests = RequestGuard(way, client, self._recorder)
        heart = asyncio.create_task(self._watch_heart(), name="triton-heart")
        self._exits.callback(heart.cancel)

    async def _start_openai(self, slot_socket: Path | None) -> None:
        """Before Triton, which takes longer to start."""
        if not self._settings.openai_port:
            return
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


def _socket_path(runtime_dir: Path) -> Path:
    """Where the slot listens for us."""
    path = runtime_dir / "slot"
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        raise InvalidSetting(name="TMPDIR", expected="a shorter path", value=tempfile.gettempdir())
    return path
