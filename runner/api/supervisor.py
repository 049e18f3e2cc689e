"""The OpenAI-compatible API as a supervised child: a process of its own, started again if it ends.

A process, because Python runs one thread at a time: in Cog's worker, each would slow the other's streams. The
runner listens on the port itself, from before the child's start to its own end: a taken port is an error at
once, and while a child is started again its clients wait instead of being refused.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from engine.machine.root import SOURCE_ROOT
from engine.redact import without_secret_variables
from errors.api import OpenAIServerFailed
from errors.triton import ServerStopping
from errors.wire import ExitReason
from runner.api.call import is_generation
from runner.api.start import Start
from runner.observability.logs import JSON, log_refusal
from runner.observability.meter import Meter
from runner.settings.paths import metrics_dir, openai_shapes_path
from runner.settings.ports import check_port_free, local_url
from runner.settings.settings import Settings
from runner.supervision.backoff import LONGEST_S, Backoff
from runner.supervision.child import Child, Log, cancelled, exit_reason, with_parent
from runner.supervision.client_sockets import set_options
from runner.supervision.readiness import await_ready
from runner.supervision.unavailable import reject

_BACKLOG = 2048
_READY_TIMEOUT_S = 60.0
_STOP_GRACE_S = 5.0
_SHOWN_LINES = 15


class OpenAIServer:
    """From ``start`` to ``stop``; in between, ``wait_ready``."""

    def __init__(self, settings: Settings, slot_socket: Path | None, *, log: Log) -> None:
        """``settings``: of the engine's folder, wherever it came from. ``slot_socket``: None behind C++."""
        self._settings = settings
        self._slot_socket = slot_socket
        self._log = log
        self._child = Child(
            "the OpenAI-compatible API",
            log,
            log_prefix="openai",
            log_lines=_SHOWN_LINES,
            stop_grace_s=_STOP_GRACE_S,
        )
        self._exit_reason = ExitReason()
        self._socket: socket.socket
        self._supervisor: asyncio.Task[None] | None = None
        self._rejecting: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def url(self) -> str:
        return local_url(self._settings.openai_host, self._settings.openai_port)

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        """Listen, and start the child, which takes a while to answer. Raises E1007, E1006."""
        check_openai_port_free(self._settings)
        address = self._settings.openai_host, self._settings.openai_port
        self._socket = socket.create_server(address, backlog=_BACKLOG)
        set_options(self._socket)
        await self._launch()

    async def wait_ready(self) -> None:
        """Wait until it answers; from then on it is watched. Raises E2600, or what the child failed with."""
        reason = await await_ready(self._child, f"{self.url}/health", _READY_TIMEOUT_S)
        if reason is not None:
            await self._child.drain_log()
            log_tail = " | ".join(self._child.log_tail) or "(none)"
            raise self._exit_reason.read() or OpenAIServerFailed(reason=reason, log_tail=log_tail)
        self._supervisor = asyncio.create_task(self._supervise(), name="openai-supervisor")

    async def drain(self) -> None:
        """Let the child end what runs, or end it after the grace period; new clients get 503 meanwhile."""
        await cancelled(self._supervisor)
        self._child.send_signal(signal.SIGTERM)
        meter = Meter("openai", metrics_dir(self._settings.triton_http_port))
        rejecting = reject(self._socket.dup(), partial(self._record_rejected, meter))
        self._rejecting = asyncio.create_task(rejecting, name="openai-reject")
        await self._child.exit_code()

    def _record_rejected(self, meter: Meter, head: bytes, request_id: str) -> None:
        if not is_generation(head):
            return
        meter.refused(ServerStopping.code)
        if self._settings.log_format == JSON:
            log_refusal("openai", "failed", request_id, ServerStopping.code, duration_s=0.0)

    async def stop(self) -> None:
        """Stop to listen and end the child: SIGTERM, a grace period, SIGKILL."""
        await cancelled(self._supervisor)
        if self._rejecting is not None:
            self._rejecting.cancel()
        self._socket.close()
        await self._child.end()

    async def _launch(self) -> None:
        self._exit_reason.clear()
        start = Start(
            metrics_dir=metrics_dir(self._settings.triton_http_port),
            shapes_path=openai_shapes_path(self._settings.triton_http_port),
            settings=self._settings,
            socket_fd=self._socket.fileno(),
            exit_reason_fd=self._exit_reason.descriptor,
            slot_socket=self._slot_socket,
        )
        await self._child.launch(
            [*with_parent(os.getpid()), sys.executable, "-m", "runner.api"],
            without_secret_variables(os.environ) | {"PYTHONPATH": str(SOURCE_ROOT), "PYTHONSAFEPATH": "1"},
            stdin=start.model_dump_json().encode(),
            pass_fds=[self._socket.fileno(), self._exit_reason.descriptor],
        )

    async def _supervise(self) -> None:
        """Start the child again each time that it ends."""
        backoff = Backoff()
        while True:
            started_s = time.monotonic()
            code = await self._child.exit_code()
            self._log(f"the OpenAI-compatible API ended ({exit_reason(code)}); it is started again")
            if time.monotonic() - started_s > LONGEST_S:
                backoff = Backoff()
            await self._child.drain_log()
            await asyncio.sleep(backoff.next_s())
            self.restarts += 1
            await self._launch()


def check_openai_port_free(settings: Settings) -> None:
    """Raise E1007 or E1006."""
    check_port_free(settings.openai_host, settings.openai_port, "the OpenAI-compatible API", "OPENAI_PORT")
