"""The OpenAI-compatible API as supervised children: processes of their own, started again if they end.

Processes, because Python runs one thread at a time: in Cog's worker, each would slow the other's streams. The
runner listens on the port itself, from before the children's start to its own end: a taken port is an error
at once, and while a child is started again its clients wait instead of being refused. Several children have a
socket each, and Linux chooses one for each connection. They take connections that wait on each other's, and
each is a client of the engine server.
"""

import asyncio
import math
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.machine.root import own_environment
from errors.api import OpenAIServerFailed
from errors.coded_error import CodedError
from errors.triton import ServerStopping
from runner.api.call import is_generation
from runner.api.limits import clear_count, shared_counts
from runner.api.start import APIStart
from runner.observability.logs import JSON, log_refusal
from runner.observability.meter import Meter
from runner.settings.paths import metrics_dir
from runner.settings.ports import LOOPBACK, Listener, check_ports_free, local_url
from runner.settings.settings import Settings
from runner.settings.triton_address import TritonAddress
from runner.supervision.child import Log, cancelled
from runner.supervision.client_sockets import set_options
from runner.supervision.failures import ProcessFailure
from runner.supervision.health import answers_ok
from runner.supervision.supervised import SupervisedProcess
from runner.supervision.unavailable import reject

_BACKLOG = 2048
_MIN_START_TIMEOUT_S = 60.0
_RETURNS_LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Setting by which malloc returns all freed large blocks to the kernel, not only the first ones."""
_FINAL_RESPONSES_S = 5.0
"""Time after the grace period for the errors of requests that it ended."""


class APIServers:
    """All processes of the API, from ``begin`` to ``stop``; in between, ``wait_ready`` and ``drain``."""

    def __init__(
        self,
        settings: Settings,
        engine_socket: Path | None,
        triton: TritonAddress | None,
        *,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """Initialize. ``settings`` have the engine's folder. ``engine_socket``: None behind C++.

        ``triton``: a Triton with NVIDIA's backend, which is asked in place of an engine server.
        """
        self._settings = settings
        count = settings.openai_processes
        share = settings.model_copy(
            update={"openai_max_connections": math.ceil(settings.openai_max_connections / count)}
        )
        self._texts = shared_counts(count)
        self.processes = [
            APIServer(share, number, self._texts, engine_socket, triton, log=log, on_failure=on_failure)
            for number in range(count)
        ]
        self._listeners: list[socket.socket] = []
        self._rejecting: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Listen, and start the children. Raises E1007, E1006."""
        check_ports_free(openai_listener(self._settings))
        address = self._settings.openai_host, self._settings.openai_port
        for number in range(len(self.processes)):
            listener = socket.create_server(address, backlog=_BACKLOG, reuse_port=number > 0)
            # NOTE: set only now, so that no other program shares the port, and not for one process.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, len(self.processes) > 1)
            listener.setblocking(False)
            set_options(listener)
            self._listeners.append(listener)
        for process in self.processes:
            process.listen_with(self._listeners)
            process.begin()

    async def wait_ready(self) -> None:
        """Raise the CodedError of a first start that failed."""
        for process in self.processes:
            await process.wait_ready()

    async def drain(self) -> None:
        """Let running requests end, or end them after the grace period; new clients get 503 meanwhile."""
        for process in self.processes:
            await process.end_supervision()
            process.child.send_signal(signal.SIGTERM)
        meter = Meter("openai", metrics_dir(self._settings.triton_http_port))
        for listener in self._listeners:
            rejecting = reject(listener.dup(), partial(self._record_rejected, meter))
            self._rejecting.append(asyncio.create_task(rejecting, name="openai-reject"))
        ends = [asyncio.ensure_future(process.child.exit_code()) for process in self.processes]
        # ``stop`` ends processes that were stopped or hang.
        _, left = await asyncio.wait(ends, timeout=self._settings.stop_grace_s + _FINAL_RESPONSES_S)
        for each in left:
            each.cancel()

    def _record_rejected(self, meter: Meter, head: bytes, request_id: str) -> None:
        if not is_generation(head):
            return
        meter.ended("failed", ServerStopping.code)
        if self._settings.log_format == JSON:
            log_refusal("openai", "failed", request_id, ServerStopping.code, duration_s=0.0)

    async def stop(self) -> None:
        """Stop listening, and end the children."""
        for process in self.processes:
            await process.end_supervision()
        for rejecting in self._rejecting:
            await cancelled(rejecting)
        for listener in self._listeners:
            listener.close()
        await asyncio.gather(*(process.stop() for process in self.processes))
        os.close(self._texts)


class APIServer(SupervisedProcess):
    """One process of the API."""

    part = "api"
    log_prefix = "openai"
    stop_grace_s = 5.0
    hang_timeout_s = 30.0
    is_exposed = True

    def __init__(
        self,
        settings: Settings,
        number: int,
        texts: int,
        engine_socket: Path | None,
        triton: TritonAddress | None,
        *,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """Initialize. ``settings`` have this process's share of connections; ``number`` counts from 0.

        ``texts``: see ``shared_counts``.
        """
        name = "the OpenAI-compatible API" + (f", process {number}" if settings.openai_processes > 1 else "")
        start_timeout_s = max(_MIN_START_TIMEOUT_S, settings.triton_start_timeout_s)
        super().__init__(name, log, on_failure, start_timeout_s)
        self._settings = settings
        self._number = number
        self._texts = texts
        self._engine_socket = engine_socket
        self._triton = triton
        self._listeners: list[socket.socket]
        self._own_listener: socket.socket | None = None
        """Socket on which this process alone answers, for its heartbeat; None: there is no other process."""

    def listen_with(self, listeners: list[socket.socket]) -> None:
        """Listen with ``listeners``, one for each process."""
        self._listeners = listeners
        if len(listeners) > 1:
            self._own_listener = socket.create_server((LOOPBACK, 0))

    @property
    def _url(self) -> str:
        if self._own_listener is not None:
            return local_url(*self._own_listener.getsockname())
        return local_url(self._settings.openai_host, self._settings.openai_port)

    async def launch(self) -> None:
        own = self._listeners[self._number]
        others = [each.fileno() for each in self._listeners if each is not own]
        sockets = [each.fileno() for each in (own, self._own_listener) if each is not None]
        start = APIStart(
            metrics_dir=metrics_dir(self._settings.triton_http_port),
            settings=self._settings,
            number=self._number,
            texts_fd=self._texts,
            socket_fds=sockets,
            others_fds=others,
            exit_reason_fd=self.exit_reason.descriptor,
            engine_socket=self._engine_socket,
            triton=self._triton,
        )
        descriptors = [*sockets, *others, self._texts, self.exit_reason.descriptor]
        environment = own_environment() | _RETURNS_LARGE_BLOCKS
        await self.launch_module("runner.api", start.model_dump_json().encode(), descriptors, environment)

    def clean_up(self) -> None:
        # NOTE: clear it at once, as it may stay down: the others would reject requests for its texts.
        clear_count(self._texts, self._number)

    async def is_ready(self) -> bool:
        return await answers_ok(f"{self._url}/health")

    def start_error(self, reason: str) -> CodedError:
        return OpenAIServerFailed(reason=reason, log_tail=self.child.last_lines())

    def processes(self) -> dict[int, str]:
        """Return the processes but the renderer of chat templates, which is restarted without the rest."""
        return {} if self.pid is None else {self.pid: "it"}

    async def stop(self) -> None:
        await super().stop()
        if self._own_listener is not None:
            self._own_listener.close()


def openai_listener(settings: Settings) -> Listener:
    return Listener(settings.openai_host, settings.openai_port, "the OpenAI-compatible API", "OPENAI_PORT")
