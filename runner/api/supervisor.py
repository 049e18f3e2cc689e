"""The OpenAI-compatible API as a supervised child: a process of its own, started again if it ends.

A process, because Python runs one thread at a time: beside Cog's worker, each would slow the other's streams.
The runner listens on the port itself, from before the child's start to its own end: a port that is taken is
told at once, and while a child is started again its clients wait instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path

import aiohttp

from engine.machine.child_environment import without_secret_variables
from engine.machine.root import SOURCE_ROOT
from errors import find_in_text
from errors.api import OpenAIServerFailed
from errors.coded_error import CodedError
from errors.triton import ServerStopping
from runner.api.headers import is_generation
from runner.api.start import Start
from runner.observability.logs import JSON, log_refusal
from runner.observability.meter import Meter
from runner.settings.paths import metrics_dir, openai_shapes_path
from runner.settings.ports import check_port_free, local_url
from runner.settings.settings import Settings
from runner.supervision.backoff import LONGEST_S, Backoff
from runner.supervision.child import Log, end_of, exit_reason, lines, signal_group, with_parent
from runner.supervision.client_sockets import set_options
from runner.supervision.unavailable import turn_away

_BACKLOG = 2048
_READY_TIMEOUT_S = 60.0
_STOP_GRACE_S = 5.0
_TOLD_LINES = 15


class OpenAIServer:
    """From ``start`` to ``stop``; in between, ``wait_ready``."""

    def __init__(self, settings: Settings, slot_socket: Path | None, *, log: Log) -> None:
        """``settings``: of the engine's folder, wherever it came from. ``slot_socket``: None behind C++."""
        self._settings = settings
        self._slot_socket = slot_socket
        self._log = log
        self._log_tail: deque[str] = deque(maxlen=_TOLD_LINES)
        self._socket: socket.socket
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._turning_away: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def url(self) -> str:
        return local_url(self._settings.openai_host, self._settings.openai_port)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Listen, and start the child, which takes a while to answer. Raises E1007, E1006."""
        check_openai_port_free(self._settings)
        address = self._settings.openai_host, self._settings.openai_port
        self._socket = socket.create_server(address, backlog=_BACKLOG)
        set_options(self._socket)
        await self._launch()

    async def wait_ready(self) -> None:
        """Wait until it answers; from then on it is watched. Raises E2600, or what the child failed with."""
        await self._await_ready()
        self._supervisor = asyncio.create_task(self._supervise(), name="openai-supervisor")

    async def drain(self) -> None:
        """Let the child end what runs, or end it after the grace period; who comes meanwhile gets 503."""
        process = self._process
        if process is None:
            return
        await self._end_supervision()
        signal_group(process, signal.SIGTERM)
        meter = Meter("openai", metrics_dir(self._settings.triton_http_port))
        away = turn_away(self._socket.dup(), partial(self._tell_turned_away, meter))
        self._turning_away = asyncio.create_task(away, name="openai-turn-away")
        await end_of(process)

    def _tell_turned_away(self, meter: Meter, head: bytes, request_id: str) -> None:
        if not is_generation(head):
            return
        meter.refused(ServerStopping.code)
        if self._settings.log_format == JSON:
            log_refusal("openai", "failed", request_id, ServerStopping.code, duration_s=0.0)

    async def stop(self) -> None:
        """End the child: SIGTERM, a grace period, SIGKILL; and listen no longer."""
        await self._end_supervision()
        if self._turning_away is not None:
            self._turning_away.cancel()
        self._socket.close()
        await self._end_process()

    async def _end_supervision(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    async def _launch(self) -> None:
        self._log_tail.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *with_parent(os.getpid()),
            *(sys.executable, "-m", "runner.api"),
            env={
                **without_secret_variables(os.environ),
                "PYTHONPATH": str(SOURCE_ROOT),
                "PYTHONSAFEPATH": "1",
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=[self._socket.fileno()],
        )
        self._log_task = asyncio.create_task(self._forward_log(process), name="openai-log")
        start = Start(
            metrics_dir=metrics_dir(self._settings.triton_http_port),
            shapes_path=openai_shapes_path(self._settings.triton_http_port),
            settings=self._settings,
            socket_fd=self._socket.fileno(),
            slot_socket=self._slot_socket,
        )
        assert process.stdin is not None
        process.stdin.write(start.model_dump_json().encode())
        process.stdin.close()

    async def _await_ready(self) -> None:
        """NOTE: connections are taken before the child is there, so its end must be watched for as well."""
        assert self._process is not None
        answer = asyncio.create_task(self._ask())
        end = asyncio.create_task(end_of(self._process))
        try:
            await asyncio.wait({answer, end}, timeout=_READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                raise await self._failed(f"it ended ({exit_reason(end.result())})")
            if not answer.done() or not answer.result():
                raise await self._failed(f"no answer within {_READY_TIMEOUT_S:g} s")
        finally:
            answer.cancel()
            end.cancel()

    async def _ask(self) -> bool:
        timeout = aiohttp.ClientTimeout(_READY_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(f"{self.url}/health") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def _failed(self, reason: str) -> CodedError:
        """The coded error that the log ends with, else E2600."""
        await self._drain_log()
        for line in reversed(self._log_tail):
            if (cause := find_in_text(line)) is not None:
                return cause
        return OpenAIServerFailed(reason=reason, log_tail=" | ".join(self._log_tail) or "(none)")

    async def _supervise(self) -> None:
        """Wait for the child's end, tell, and start it again, as long as we are wanted."""
        backoff = Backoff()
        while True:
            assert self._process is not None
            started_s = time.monotonic()
            code = await end_of(self._process)
            self._log(f"the OpenAI-compatible API ended ({exit_reason(code)}); it is started again")
            if time.monotonic() - started_s > LONGEST_S:
                backoff = Backoff()
            await self._drain_log()
            await asyncio.sleep(backoff.next_s())
            self.restarts += 1
            await self._launch()

    async def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        signal_group(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(end_of(process), _STOP_GRACE_S)
        except asyncio.TimeoutError:
            self._log(f"the OpenAI-compatible API did not end within {_STOP_GRACE_S:g} s and is killed")
        signal_group(process, signal.SIGKILL)
        await end_of(process)
        await self._drain_log()

    async def _forward_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in lines(process.stdout):
            self._log_tail.append(line)
            self._log(f"openai: {line}")

    async def _drain_log(self) -> None:
        if self._log_task is not None:
            await asyncio.wait([self._log_task], timeout=1.0)
            self._log_task.cancel()


def check_openai_port_free(settings: Settings) -> None:
    """Raise E1007 or E1006."""
    check_port_free(settings.openai_host, settings.openai_port, "the OpenAI-compatible API", "OPENAI_PORT")
