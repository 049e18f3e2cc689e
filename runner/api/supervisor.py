"""The OpenAI-compatible API as supervised children: processes of their own, started again if they end.

Processes, because Python runs one thread at a time: in Cog's worker, each would slow the other's streams. The
runner listens on the port itself, from before the children's start to its own end: a taken port is an error
at once, and while a child is started again its clients wait instead of being refused. Several children accept
connections from one socket, the first that is free; each is a client of the engine server.
"""

import asyncio
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.machine.root import own_environment
from errors.api import OpenAIServerFailed
from errors.coded_error import CodedError
from errors.triton import ServerStopping
from runner.api.call import is_generation
from runner.api.start import Start
from runner.observability.logs import JSON, log_refusal
from runner.observability.meter import Meter
from runner.settings.external_triton import ExternalTriton
from runner.settings.paths import metrics_dir, openai_shapes_paths
from runner.settings.ports import LOOPBACK, Listener, check_ports_free, local_url
from runner.settings.settings import Settings
from runner.supervision.child import Child, Log, cancelled, with_parent
from runner.supervision.client_sockets import set_options
from runner.supervision.failures import ProcessFailure
from runner.supervision.health import answers_ok
from runner.supervision.supervised import SupervisedProcess
from runner.supervision.unavailable import reject

_BACKLOG = 2048
_START_TIMEOUT_S = 60.0
_HANG_TIMEOUT_S = 30.0
_STOP_GRACE_S = 5.0
_RETURNS_LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""malloc gives them back to the kernel when they are freed. By itself it stops to after the first ones."""
_FINAL_RESPONSES_S = 5.0
"""After the grace period, for the errors of requests that it ended."""


class APIServers:
    """All its processes, from ``begin`` to ``stop``; in between, ``wait_ready`` and ``drain``."""

    def __init__(
        self,
        settings: Settings,
        engine_socket: Path | None,
        triton: str | ExternalTriton,
        *,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """``settings``: of the engine's folder, wherever it came from. ``engine_socket``: None behind C++.

        ``triton``: the URL of the runner's own, or an external one, which is asked in place of both.
        """
        self._settings = settings
        count = settings.openai_processes
        limits = ("openai_max_requests", "openai_max_connections")
        shares = settings.model_copy(
            update={name: math.ceil(getattr(settings, name) / count) for name in limits}
        )
        self.processes = [
            APIServer(shares, number, engine_socket, triton, log=log, on_failure=on_failure)
            for number in range(count)
        ]
        self._listener: socket.socket
        self._rejecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Listen, and start the children. Raises E1007, E1006."""
        check_ports_free(openai_listener(self._settings))
        address = self._settings.openai_host, self._settings.openai_port
        self._listener = socket.create_server(address, backlog=_BACKLOG)
        set_options(self._listener)
        for process in self.processes:
            process.listen_with(self._listener)
            process.begin()

    async def wait_ready(self) -> None:
        """Raises the CodedError of a first start that failed."""
        for process in self.processes:
            await process.wait_ready()

    async def drain(self) -> None:
        """Let the children end what runs, or end it after the grace period; new clients get 503 meanwhile."""
        for process in self.processes:
            await process.end_supervision()
            process.child.send_signal(signal.SIGTERM)
        meter = Meter("openai", metrics_dir(self._settings.triton_http_port))
        rejecting = reject(self._listener.dup(), partial(self._record_rejected, meter))
        self._rejecting = asyncio.create_task(rejecting, name="openai-reject")
        ends = [asyncio.ensure_future(process.child.exit_code()) for process in self.processes]
        # Those that were stopped, or hang, are ended by ``stop``.
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
        """Stop to listen, and end the children."""
        for process in self.processes:
            await process.end_supervision()
        await cancelled(self._rejecting)
        self._listener.close()
        await asyncio.gather(*(process.stop() for process in self.processes))


class APIServer(SupervisedProcess):
    """One process of the API."""

    def __init__(
        self,
        settings: Settings,
        number: int,
        engine_socket: Path | None,
        triton: str | ExternalTriton,
        *,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
    ) -> None:
        """``settings``: with this process's share of the limits. ``number``: from 0, of all of them."""
        name = "the OpenAI-compatible API" + (f", process {number}" if settings.openai_processes > 1 else "")
        super().__init__(
            "api",
            Child(name, log, log_prefix="openai", stop_grace_s=_STOP_GRACE_S),
            log,
            on_failure,
            start_timeout_s=_START_TIMEOUT_S,
            hang_timeout_s=_HANG_TIMEOUT_S,
        )
        self._settings = settings
        paths = openai_shapes_paths(settings.triton_http_port, settings.openai_processes)
        self._shapes_path = paths[number]
        self._engine_socket = engine_socket
        self._triton = triton
        self._listener: socket.socket
        self._own_listener: socket.socket | None = None
        """Where this process alone answers, for its heartbeat; None: there is no other."""

    def listen_with(self, listener: socket.socket) -> None:
        self._listener = listener
        if self._settings.openai_processes > 1:
            self._own_listener = socket.create_server((LOOPBACK, 0))

    @property
    def _url(self) -> str:
        if self._own_listener is not None:
            return local_url(*self._own_listener.getsockname())
        return local_url(self._settings.openai_host, self._settings.openai_port)

    async def launch(self) -> None:
        listeners = [each.fileno() for each in (self._listener, self._own_listener) if each is not None]
        start = Start(
            metrics_dir=metrics_dir(self._settings.triton_http_port),
            shapes_path=self._shapes_path,
            settings=self._settings,
            socket_fds=listeners,
            exit_reason_fd=self.exit_reason.descriptor,
            engine_socket=self._engine_socket,
            triton=self._triton,
        )
        await self.child.launch(
            [*with_parent(os.getpid()), sys.executable, "-m", "runner.api"],
            own_environment() | _RETURNS_LARGE_BLOCKS,
            stdin=start.model_dump_json().encode(),
            pass_fds=[*listeners, self.exit_reason.descriptor],
        )

    async def is_ready(self) -> bool:
        return await answers_ok(f"{self._url}/health")

    async def is_answering(self) -> bool:
        return await self.is_ready()

    def start_error(self, reason: str) -> CodedError:
        return OpenAIServerFailed(reason=reason, log_tail=self.child.last_lines())

    def processes(self) -> dict[int, str]:
        """Without the renderer of chat templates, which it starts again by itself."""
        return {} if self.pid is None else {self.pid: "it"}

    async def stop(self) -> None:
        await super().stop()
        if self._own_listener is not None:
            self._own_listener.close()


def openai_listener(settings: Settings) -> Listener:
    return Listener(settings.openai_host, settings.openai_port, "the OpenAI-compatible API", "OPENAI_PORT")
