"""A serving runner: its model, its processes, its metrics. Opened in setup."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from engine.directory import Engine
from engine.progress import Progress
from runner.api.supervisor import APIServers, openai_listener
from runner.chat.families.recognition import check_family
from runner.engines.protocol.arrival import Arrived
from runner.engines.protocol.messages import Sampling
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts, load_model_facts
from runner.generation.request import GenerationRequest
from runner.observability.logs import JSON, log_in
from runner.observability.meter import Meter, RequestMeter
from runner.observability.metrics import TRITON_RESTARTS
from runner.observability.tracing import Tracing, open_tracing
from runner.settings.paths import metrics_dir
from runner.settings.ports import check_ports_free
from runner.settings.settings import Settings
from runner.stack.served_engine import open_served_engine
from runner.stack.stack import EngineStack
from runner.supervision.child import Log

if TYPE_CHECKING:
    from runner.dynamo.supervisor import DynamoWorker

_TEST_PROMPT = "hi"
_TEST_TOKENS = 3


class Service:
    """The service: between ``open`` and ``close``, ``generate`` is ready."""

    engine: Engine
    model: ModelFacts

    def __init__(self, settings: Settings, log: Log | None = None, progress: Progress | None = None) -> None:
        self._settings = settings
        self._is_log_json = settings.log_format == JSON
        self._log = log or log_in(settings.log_format)
        self._progress = progress
        self._exits = AsyncExitStack()
        self.unrecoverable = asyncio.Event()
        """Event, set when failures were too many: the process has to end with an error."""
        self._is_closed = False
        self.is_stopping = False
        self.stack = EngineStack(
            settings, self._log, self.unrecoverable, on_restart=lambda: self.meter.add(TRITON_RESTARTS)
        )
        self.meter = Meter("cog")
        self._tracing: Tracing | None = None
        self.openai: APIServers | None = None
        self.dynamo: DynamoWorker | None = None

    async def open(self) -> None:
        """Get the engine, start all processes and generate once. Raises a CodedError."""
        started_s = time.monotonic()
        try:
            check_family(self._settings.chat_family)
            loop = asyncio.get_running_loop()
            self.engine = await asyncio.to_thread(self._open_engine, loop)
            self._log_engine()
            self.model = load_model_facts(self.engine, self._settings)
            if self.model.warning:
                self._log(f"warning: {self.model.warning}")
            await self._begin(self.engine)
            self._start_openai()
            facts = self.model
            arrived = Arrived(facts.end_ids, facts.pad_id, facts.max_prompt_bytes, facts.max_input_length)
            await self.stack.arrive(arrived)
            await self._test()
            # Set only now: the test does not count as a request.
            self.meter = Meter("cog", metrics_dir(self._settings.triton_http_port))
            self._exits.callback(self.meter.close)
            model = self.engine.manifest.model_id or self.engine.manifest.engine_kind
            self._tracing = open_tracing(self._settings.otlp_traces_url, self._settings.service_name, model)
            if self.openai is not None:
                await self.openai.wait_ready()
            await self._start_dynamo()
        except BaseException:
            await self.close()
            raise
        self._log(f"ready after {time.monotonic() - started_s:.1f} s")

    async def close(self) -> None:
        self._is_closed = True
        async with self._exits:  # These are closed even if ending the others fails.
            await self.stack.close()

    def kill(self) -> None:
        """End all processes now, from any thread: this one is about to end."""
        self.stack.kill()

    def generate(
        self,
        request: GenerationRequest,
        *,
        measures_phases: bool = False,
        arrived_s: float | None = None,
        request_id: str = "",
    ) -> Generation:
        """Make a generation. ``measures_phases``: with the engine server's times. ``arrived_s``: when the
        request arrived, by ``perf_counter``; None: now. ``request_id``: for logs and traces.
        """
        request = request.with_priority(self._settings.min_priority)
        trace = self._tracing.begin(request.traced(), response_id=request_id) if self._tracing else None
        return Generation(
            request,
            self.model,
            self.stack.requests,
            measures_phases=measures_phases or (trace is not None and trace.is_recording),
            trace=trace,
            logged_api="cog" if self._is_log_json else "",
            request_id=request_id,
            meter=RequestMeter(self.meter, arrived_s),
        )

    async def is_healthy(self) -> bool:
        """Return True while all parts serve, the engine is awake and new requests are taken.

        One process of the API is enough.
        """
        processes = [] if self.openai is None else self.openai.processes
        has_api = self.openai is None or any(process.is_serving for process in processes)
        is_taking = not self.is_stopping and not self.stack.is_asleep
        has_worker = self.dynamo is None or self.dynamo.is_serving
        return is_taking and has_api and has_worker and all(each.is_serving for each in self.stack.processes)

    async def drain(self) -> None:
        """Refuse new requests, let running ones end within the grace period, then end them with E2110."""
        self.is_stopping = True
        others = [
            asyncio.create_task(each.drain()) for each in (self.openai, self.dynamo) if each is not None
        ]
        await self.stack.requests.drain(self._settings.stop_grace_s, self._log)
        for each in others:
            await each

    def _open_engine(self, loop: asyncio.AbstractEventLoop) -> Engine:
        """Open the engine, in a thread. Processes start in ``loop`` as soon as its kind is known."""
        return open_served_engine(
            self._settings,
            lambda engine: asyncio.run_coroutine_threadsafe(self._begin(engine), loop).result(),
            self._fetched,
            self._log,
        )

    def _fetched(self, done_bytes: int, total_bytes: int | None, what: str, /) -> None:
        self.stack.check_start()  # A failed start ends the download.
        if self._progress is not None:
            self._progress(done_bytes, total_bytes, what)

    async def _begin(self, engine: Engine) -> None:
        """Start the processes, unless they were started during the download of the engine."""
        if self._is_closed or self.stack.has_begun:
            return  # A download does not notice at once that the service was closed.
        if self._settings.openai_port:
            check_ports_free(openai_listener(self._settings))
        await self.stack.begin(engine)

    def _start_openai(self) -> None:
        if not self._settings.openai_port:
            return
        settings = self._settings.model_copy(
            update={"engine_dir": self.engine.path, "weights": None, "model_id": None}
        )
        on_failure = self.stack.failure_log().add
        server = APIServers(
            settings, self.stack.engine_socket, self.stack.cpp_backend, log=self._log, on_failure=on_failure
        )
        server.begin()
        self._exits.push_async_callback(server.stop)
        self.openai = server

    async def _start_dynamo(self) -> None:
        if self._settings.dynamo is None:
            return
        from runner.dynamo.supervisor import DynamoWorker  # Few runners have one.

        worker = DynamoWorker(
            self._settings,
            self.engine,
            self.model,
            self.stack.engine_socket,
            self._log,
            self.stack.failure_log().add,
        )
        worker.begin()
        self._exits.push_async_callback(worker.stop)
        self.dynamo = worker
        await worker.wait_ready()

    async def _test(self) -> None:
        """Generate or embed once before the runner is ready."""
        request = GenerationRequest(
            prompt=_TEST_PROMPT,
            max_tokens=_TEST_TOKENS,
            min_tokens=0,
            stop_sequences=(),
            sampling=Sampling(temperature=0),
            embeds=self.model.pooling is not None,
        )
        generation = self.generate(request)
        async for _ in generation.text():
            pass
        self._log(f"test prediction: {generation.output_token_count} tokens")

    def _log_engine(self) -> None:
        manifest = self.engine.manifest
        source = f" from {manifest.model_id}" if manifest.model_id else ""
        self._log(f"engine: {manifest.engine_kind}{source} at {self.engine.path}")
        for warning in self.engine.warnings:
            self._log(f"warning: {warning}")
