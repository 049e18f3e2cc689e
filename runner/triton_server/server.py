"""Triton as a supervised child: started with a deadline, watched, restarted with back-off, stopped whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import aiohttp

from engine.machine.mpirun import mpi_environment
from errors import find_in_text
from errors.coded_error import CodedError
from errors.triton import TritonStartFailed
from runner.engines.worker.process import ENGINE_LOST
from runner.supervision.backoff import Backoff
from runner.supervision.child import Log, end_of, exit_reason, lines, signal_group
from runner.supervision.failures import Failure
from runner.supervision.process_states import StoppedWatch, signal_that_ended
from runner.triton_server.command import TritonCommand
from runner.triton_server.stubs import describe_stub, stubs_of

_READY_POLL_S = 0.05
_READY_TIMEOUT_S = 2.0
_SUPERVISION_POLL_S = 0.1
_STOP_GRACE_S = 10.0
_LOG_LINES = 200
_TOLD_ERROR_LINES = 3
_TOLD_LINES = 15
_ERROR_LINE = re.compile(r"E\d{4} |error:")

OnFailure = Callable[[Failure], bool]
"""Hears of each failure; whether to go on and start again."""


class TritonServer:
    """One tritonserver at a time, from ``start`` to ``stop``."""

    def __init__(
        self,
        command: TritonCommand,
        start_timeout_s: float,
        log: Log,
        arrival: Path | None = None,
        on_failure: OnFailure = lambda _: True,
    ) -> None:
        """``arrival``: see ``engines.protocol.engine_ready``; the time to become ready counts from then."""
        self._on_failure = on_failure
        self._arrival = arrival
        self._command = command
        self._start_timeout_s = start_timeout_s
        self._log = log
        self._log_tail: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._kill_reason: str | None = None
        self.restarts = 0
        self.on_restart: Callable[[], None] = lambda: None
        self.down_reason: str | None = "it was not started"
        """Why Triton can't take requests, or None while it can."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start Triton and wait until all models are ready. Raises E1007 or E2106."""
        self._command.ports.check_free()
        await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(), name="triton-supervisor")

    def kill(self, reason: str) -> None:
        """For who finds that it hangs: end it at once, as if it had died by itself, and start it again."""
        self._kill_reason = reason

    def kill_now(self) -> None:
        """End it and all it started at once, from any thread, for good: this process is about to end."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._remove_shared_memory()

    async def stop(self) -> None:
        """End Triton and all it started: SIGTERM, a grace period, SIGKILL."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        self.down_reason = "it was stopped"
        await self._end_process()

    async def _launch(self) -> None:
        self._log_tail.clear()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command.words(),
                env=mpi_environment(self._command.install.environment()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as exc:
            raise self._start_failed(f"it can't be run ({exc})") from exc
        self._log_task = asyncio.create_task(self._forward_log(self._process), name="triton-log")
        try:
            await self._await_ready(self._process)
        except BaseException:
            await self._end_process()
            raise
        # Who needs it has it open: without a name it is gone with the last of them, however they end.
        self._remove_shared_memory()
        self.down_reason = None

    async def _await_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_READY_TIMEOUT_S)) as session:
            while not await self._is_ready(session):
                if process.returncode is not None:
                    await self._drain_log()
                    raise self._start_failed(f"it ended ({exit_reason(process.returncode)})")
                if self._is_waiting:
                    deadline_s = time.monotonic() + self._start_timeout_s
                if time.monotonic() > deadline_s:
                    raise self._start_failed(f"not within {self._start_timeout_s:g} s")
                await asyncio.sleep(_READY_POLL_S)

    @property
    def _is_waiting(self) -> bool:
        """Whether Triton's models still wait for the engine."""
        return self._arrival is not None and not self._arrival.exists()

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self._command.ports.http_url}/v2/health/ready") as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    def _start_failed(self, reason: str) -> CodedError:
        """The coded error that the log holds (an engine's, say), else E2106 with the log's last errors."""
        for line in reversed(self._log_tail):
            # Triton says it in a table, too.
            if (cause := find_in_text(line.rstrip(" |"))) is not None:
                return cause
        # The first tell the cause; with several ranks, mpirun ends the others while they load.
        errors = [line for line in self._log_tail if _ERROR_LINE.match(line)][:_TOLD_ERROR_LINES]
        told = errors or list(self._log_tail)[-_TOLD_LINES:]
        return TritonStartFailed(reason=reason, log_tail=" | ".join(told) or "(none)")

    async def _supervise(self) -> None:
        """Wait for Triton's end, tell, and start it again, as long as we are wanted."""
        while True:
            assert self._process is not None
            reason = await self._end_of_triton_or_stub(self._process)
            self.down_reason = reason
            self._log(f"Triton can't go on: {reason}")
            await self._end_process()
            if not self._on_failure(Failure("triton", reason, tuple(self._log_tail))):
                self.down_reason = f"{reason}, and it failed too often"
                return
            if not await self._restart():
                return

    async def _end_of_triton_or_stub(self, process: asyncio.subprocess.Process) -> str:
        """Wait until Triton or a stub of it ends or hangs; why. The rest of it is killed, at once."""
        stubs = {pid: describe_stub(pid) for pid in stubs_of(process.pid)}
        stopped = StoppedWatch()
        self._kill_reason = None
        while (reason := self._why_unusable(process, stubs, stopped)) is None:  # noqa: ASYNC110
            await asyncio.sleep(_SUPERVISION_POLL_S)
        self.down_reason = reason
        if process.returncode is None:
            signal_group(process, signal.SIGKILL)
            await end_of(process)
        return reason

    def _why_unusable(
        self, process: asyncio.subprocess.Process, stubs: dict[int, str], stopped: StoppedWatch
    ) -> str | None:
        if process.returncode is not None:
            return f"it ended ({exit_reason(process.returncode)})"
        for pid, name in stubs.items():
            if (number := signal_that_ended(pid)) is not None:
                how = f"killed by {signal.Signals(number).name}" if number else "by itself"
                return f"{name} ended ({how})"
        if (pid_stopped := stopped.find([process.pid, *stubs])) is not None:
            return f"{stubs.get(pid_stopped, 'its server')} was stopped (SIGSTOP) and did not go on"
        return self._kill_reason

    async def _restart(self) -> bool:
        """Until Triton is ready; False if it failed too often."""
        backoff = Backoff()
        while True:
            self.restarts += 1
            self.on_restart()
            try:
                await self._launch()
            except CodedError as exc:
                if not self._on_failure(Failure("triton start", str(exc), tuple(self._log_tail))):
                    self.down_reason = f"{exc.sentence}, and it failed too often"
                    return False
                wait_s = backoff.next_s()
                self._log(f"{exc}; next try in {wait_s:g} s")
                await asyncio.sleep(wait_s)
            else:
                self._log("Triton is ready again")
                return True

    async def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        # It heeds SIGTERM only when its models are loaded, and these wait for an engine that won't come.
        signal_group(process, signal.SIGKILL if self._is_waiting else signal.SIGTERM)
        try:
            await asyncio.wait_for(end_of(process), _STOP_GRACE_S)
        except asyncio.TimeoutError:
            self._log(f"Triton did not end within {_STOP_GRACE_S:g} s and is killed")
        signal_group(process, signal.SIGKILL)
        await end_of(process)
        await self._drain_log()
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        """The names of what Triton and its stubs share; one that is killed while it starts leaves them."""
        for region in Path("/dev/shm").glob(f"{self._command.shm_prefix}*"):  # noqa: S108
            region.unlink(missing_ok=True)

    async def _forward_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in lines(process.stdout):
            self._log_tail.append(line)
            self._log(f"triton: {line}")
            if ENGINE_LOST in line:
                self._engine_lost(line.partition(ENGINE_LOST)[2])

    def _engine_lost(self, reason: str) -> None:
        """The slot tells of its worker; it starts another by itself, until that was too often."""
        if not self._on_failure(Failure("engine", reason, tuple(self._log_tail))):
            self.down_reason = f"{reason}, and it failed too often"

    async def _drain_log(self) -> None:
        if self._log_task is not None:
            # A grandchild that holds the pipe must not hold us.
            await asyncio.wait([self._log_task], timeout=1.0)
            self._log_task.cancel()
