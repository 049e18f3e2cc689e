"""Triton as a supervised child: started with a deadline, watched, restarted with backoff, stopped whole.

Triton does not notice that a stub, which holds one of its Python models, has ended or was stopped: the model
fails from then on, and its requests wait for ever. So the stubs are watched as well.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

from engine.machine.mpirun import mpi_environment
from engine.machine.processes import StoppedWatch, children_by_parent, name_of, signal_that_ended
from errors.coded_error import CodedError
from errors.triton import TritonStartFailed
from runner.engines.worker.process import ENGINE_LOST
from runner.supervision.backoff import Backoff
from runner.supervision.child import Child, Log, cancelled, exit_reason
from runner.supervision.failures import ProcessFailure
from runner.supervision.readiness import await_ready
from runner.triton_server.command import TritonCommand, check_triton_ports_free

_SUPERVISION_POLL_S = 0.1
_STOP_GRACE_S = 10.0
_LOG_LINES = 200
_SHOWN_ERROR_LINES = 3
_SHOWN_LINES = 15
_ERROR_LINE = re.compile(r"E\d{4} |error:")
_MODEL = re.compile(rb"/([^/\0]+)/1/model\.py")


class TritonServer:
    """One tritonserver at a time, from ``start`` to ``stop``."""

    def __init__(
        self,
        command: TritonCommand,
        log: Log,
        arrival: Path,
        on_failure: Callable[[ProcessFailure], bool],
        on_restart: Callable[[], object],
    ) -> None:
        """``arrival``: see ``engines.protocol.arrival``; the time to become ready counts from then.

        ``on_failure``: called for each failure; returns whether to start again.
        """
        self._on_failure = on_failure
        self._on_restart = on_restart
        self._arrival = arrival
        self._has_arrived = False
        self._command = command
        self._start_timeout_s = command.settings.triton_start_timeout_s
        self._log = log
        self._child = Child(
            "Triton", log, log_prefix="triton", log_lines=_LOG_LINES, stop_grace_s=_STOP_GRACE_S
        )
        self._child.on_line = self._read_line
        self._supervisor: asyncio.Task[None] | None = None
        self._kill_reason: str | None = None
        self.restarts = 0
        self.down_reason: str | None = "it was not started"
        """Why Triton can't take requests, or None while it can."""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def start(self) -> None:
        """Start Triton and wait until all models are ready. Raises E1007 or E2106."""
        check_triton_ports_free(self._command.settings)
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
        url = f"{self._command.settings.triton_url}/v2/health/ready"
        try:
            reason = await await_ready(self._child, url, self._start_timeout_s, self._is_waiting)
            if reason is not None:
                raise self._start_failed(reason)
        except BaseException:
            await self._end()
            raise
        # All have it open by now: without a name it is freed when the last of them ends.
        self._remove_shared_memory()
        self.down_reason = None

    def _is_waiting(self) -> bool:
        """Whether Triton's models still wait for the engine."""
        self._has_arrived = self._has_arrived or self._arrival.exists()
        return not self._has_arrived

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

    def _goes_on(self, part: str, reason: str, sentence: str | None = None) -> bool:
        """Report a failure; False if there were too many. Clients get ``sentence``, by default the reason."""
        goes_on = self._on_failure(ProcessFailure(part, reason, tuple(self._child.log_tail)))
        if not goes_on:
            self.down_reason = f"{sentence or reason}, and it failed too often"
        return goes_on

    async def _end_of_triton_or_stub(self) -> str:
        """Wait until Triton or a stub ends or hangs, kill the rest at once, and return the reason."""
        pid = self.pid
        stubs = {stub: _described(stub) for stub in _stubs_of(pid)} if pid is not None else {}
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
            self._on_restart()
            try:
                await self._launch()
            except CodedError as exc:
                if not self._goes_on("triton start", str(exc), exc.sentence):
                    return False
                wait_s = backoff.next_s()
                self._log(f"{exc}; next try in {wait_s:g} s")
                await asyncio.sleep(wait_s)
            else:
                self._log("Triton is ready again")
                return True

    async def _end(self) -> None:
        # Triton reacts to SIGTERM only once its models are loaded, which may wait for an engine.
        await self._child.end(signal.SIGKILL if self._is_waiting() else signal.SIGTERM)
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        """Remove the names of Triton's shared memory: killed while it starts, it leaves them behind."""
        for region in Path("/dev/shm").glob(f"{self._command.shm_prefix}*"):  # noqa: S108
            region.unlink(missing_ok=True)

    def _read_line(self, line: str) -> None:
        """Count losses of the engine worker, which the slot logs and starts again by itself."""
        if ENGINE_LOST in line:
            self._goes_on("engine", line.partition(ENGINE_LOST)[2])


def _stubs_of(triton_pid: int) -> list[int]:
    """The process ids of Triton's children; of mpirun's Tritons, and of theirs."""
    by_parent = children_by_parent()
    children = by_parent.get(triton_pid, [])
    tritons = [pid for pid in children if name_of(pid) == "tritonserver"]
    return children + [stub for pid in tritons for stub in by_parent.get(pid, [])]


def _described(pid: int) -> str:
    """A process of Triton that runs, in an operator's words."""
    try:
        model = _MODEL.search((Path("/proc") / str(pid) / "cmdline").read_bytes())
    except OSError:
        model = None  # It is gone.
    return f"the process of its Python model {model[1].decode()}" if model else "one of its processes"
