"""Triton as a supervised child: started with a deadline, watched, restarted with backoff, stopped whole."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from engine.machine.mpirun import mpi_environment
from engine.machine.processes import StoppedWatch, signal_that_ended
from errors.coded_error import CodedError
from errors.triton import TritonStartFailed
from runner.engines.worker.process import ENGINE_LOST
from runner.supervision.backoff import Backoff
from runner.supervision.child import Child, Log, cancelled, exit_reason
from runner.supervision.failures import ProcessFailure
from runner.triton_server.command import TritonCommand
from runner.triton_server.stubs import describe_stub, stubs_of

_READY_POLL_S = 0.05
_READY_TIMEOUT_S = 2.0
_SUPERVISION_POLL_S = 0.1
_STOP_GRACE_S = 10.0
_LOG_LINES = 200
_SHOWN_ERROR_LINES = 3
_SHOWN_LINES = 15
_ERROR_LINE = re.compile(r"E\d{4} |error:")

OnFailure = Callable[[ProcessFailure], bool]
"""Called for each failure; returns whether to start again."""


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
        self._child = Child(
            "Triton", log, log_prefix="triton", log_lines=_LOG_LINES, stop_grace_s=_STOP_GRACE_S
        )
        self._child.on_line = self._read_line
        self._supervisor: asyncio.Task[None] | None = None
        self._kill_reason: str | None = None
        self.restarts = 0
        self.on_restart: Callable[[], None] = lambda: None
        self.down_reason: str | None = "it was not started"
        """Why Triton can't take requests, or None while it can."""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        """Start Triton and wait until all models are ready. Raises E1007 or E2106."""
        self._command.ports.check_free()
        await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(), name="triton-supervisor")

    def kill(self, reason: str) -> None:
        """End Triton at once because it hangs; it is started again as if it had died by itself."""
        self._kill_reason = reason

    def kill_now(self) -> None:
        """End Triton and all it started at once, from any thread: this process is about to end."""
        if self.pid is not None:
            self._child.send_signal(signal.SIGKILL)
        self._remove_shared_memory()

    async def stop(self) -> None:
        """End Triton and all it started: SIGTERM, a grace period, SIGKILL."""
        await cancelled(self._supervisor)
        self.down_reason = "it was stopped"
        await self._end()

    async def _launch(self) -> None:
        try:
            await self._child.launch(
                self._command.words(), mpi_environment(self._command.install.environment())
            )
        except OSError as exc:
            raise self._start_failed(f"it can't be run ({exc})") from exc
        try:
            await self._await_ready()
        except BaseException:
            await self._end()
            raise
        # All have it open by now: without a name it is freed when the last of them ends.
        self._remove_shared_memory()
        self.down_reason = None

    async def _await_ready(self) -> None:
        deadline_s = time.monotonic() + self._start_timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_READY_TIMEOUT_S)) as session:
            while not await self._is_ready(session):
                if (code := self._child.returncode) is not None:
                    await self._child.drain_log()
                    raise self._start_failed(f"it ended ({exit_reason(code)})")
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
        """The coded error that the log holds (an engine's, say), else E2106 with the log's first errors."""
        if (cause := self._child.logged_error()) is not None:
            return cause
        # The first name the cause; with several ranks, mpirun ends the others while they load.
        log = self._child.log_tail
        errors = [line for line in log if _ERROR_LINE.match(line)][:_SHOWN_ERROR_LINES]
        shown = errors or list(log)[-_SHOWN_LINES:]
        return TritonStartFailed(reason=reason, log_tail=" | ".join(shown) or "(none)")

    async def _supervise(self) -> None:
        """Start Triton again each time that it ends, until it failed too often."""
        while True:
            reason = await self._end_of_triton_or_stub()
            self._log(f"Triton can't go on: {reason}")
            await self._end()
            if not self._goes_on("triton", reason) or not await self._restart():
                return

    def _goes_on(self, part: str, reason: str) -> bool:
        """Report a failure; False if there were too many."""
        goes_on = self._on_failure(ProcessFailure(part, reason, tuple(self._child.log_tail)))
        if not goes_on:
            self.down_reason = f"{reason}, and it failed too often"
        return goes_on

    async def _end_of_triton_or_stub(self) -> str:
        """Wait until Triton or a stub ends or hangs, kill the rest at once, and return the reason."""
        pid = self.pid
        stubs = {stub: describe_stub(stub) for stub in stubs_of(pid)} if pid is not None else {}
        stopped = StoppedWatch()
        self._kill_reason = None
        while (reason := self._why_unusable(stubs, stopped)) is None:  # noqa: ASYNC110
            await asyncio.sleep(_SUPERVISION_POLL_S)
        self.down_reason = reason
        if self.pid is not None:
            self._child.send_signal(signal.SIGKILL)
            await self._child.exit_code()
        return reason

    def _why_unusable(self, stubs: dict[int, str], stopped: StoppedWatch) -> str | None:
        if (code := self._child.returncode) is not None:
            return f"it ended ({exit_reason(code)})"
        for pid, name in stubs.items():
            if (number := signal_that_ended(pid)) is not None:
                how = f"killed by {signal.Signals(number).name}" if number else "by itself"
                return f"{name} ended ({how})"
        pids = [pid for pid in (self.pid, *stubs) if pid is not None]
        if (pid_stopped := stopped.find(pids)) is not None:
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
                if not self._goes_on("triton start", str(exc)):
                    return False
                wait_s = backoff.next_s()
                self._log(f"{exc}; next try in {wait_s:g} s")
                await asyncio.sleep(wait_s)
            else:
                self._log("Triton is ready again")
                return True

    async def _end(self) -> None:
        # Triton reacts to SIGTERM only once its models are loaded, which may wait for an engine.
        await self._child.end(signal.SIGKILL if self._is_waiting else signal.SIGTERM)
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        """Remove the names of Triton's shared memory: killed while it starts, it leaves them behind."""
        for region in Path("/dev/shm").glob(f"{self._command.shm_prefix}*"):  # noqa: S108
            region.unlink(missing_ok=True)

    def _read_line(self, line: str) -> None:
        """Count losses of the engine worker, which the slot logs and starts again by itself."""
        if ENGINE_LOST in line:
            self._goes_on("engine", line.partition(ENGINE_LOST)[2])
