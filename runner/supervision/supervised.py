"""A supervised child process: started, watched, killed when it fails, and started again.

docs/structures.md draws its states. ``ready``: it takes requests. ``unresponsive``: it missed heartbeats;
requests are still sent to it, but the health check fails. ``down``: it failed, is killed and waits for its
next start; it stays so after too many failures.
"""

import asyncio
import enum
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from engine.machine.processes import StoppedWatch, descendants
from engine.machine.root import own_environment
from errors.coded_error import CodedError
from errors.triton import TritonUnknownError
from errors.wire import ExitReason
from runner.supervision.child import Child, Log, cancelled, how_ended, with_parent, within
from runner.supervision.failures import Backoff, ProcessFailure

_READY_POLL_S = 0.05
_WATCH_POLL_S = 0.25
_LIST_S = 10.0
_HEARTBEAT_S = 1.0
_ANSWER_TIMEOUT_S = 1.5
"""Limit of an answer: a process that hangs is unresponsive 2.5 to 4 s later."""
_MISSED_UNRESPONSIVE = 2
_MISSED_HANGING = 3
"""Number before a process is killed: if this process was paused, it misses one at most."""


class ProcessState(enum.Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNRESPONSIVE = "unresponsive"
    DOWN = "down"


class SupervisedProcess(ABC):
    """One process at a time of a program, from ``begin`` to ``stop``. Subclasses fill the hooks.

    ``on_failure`` takes each failure, and returns True to start again. ``exit_reason`` is for the process,
    which may leave there why it ends.
    """

    part: str
    """Name of the program in failures' lines."""
    log_prefix: str
    start_limit = " (TRITON_START_TIMEOUT)"
    """Name of the setting of ``start_timeout_s``, in brackets."""
    stop_grace_s = 10.0
    hang_timeout_s = 10.0
    """Time without a heartbeat after which the process is killed."""
    is_exposed = False
    """True if clients may make it fail: failures after it was ready don't count."""

    def __init__(
        self, name: str, log: Log, on_failure: Callable[[ProcessFailure], bool], start_timeout_s: float
    ) -> None:
        self.child = Child(name, log, log_prefix=self.log_prefix, stop_grace_s=self.stop_grace_s)
        self.exit_reason = ExitReason()
        self.state = ProcessState.STOPPED
        self.down_reason: str | None = "it was not started"
        """Reason why it can't take requests; None while it can."""
        self.restarts = 0
        self._log = log
        self._on_failure = on_failure
        self._start_timeout_s = start_timeout_s
        self._backoff = Backoff()
        self._starting: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._kill_reason: str | None = None
        self._processes: dict[int, str] = {}

    # Hooks

    @abstractmethod
    async def launch(self) -> None:
        """Start the process with ``child``. Any exception means that it can't be run."""

    @abstractmethod
    async def is_ready(self) -> bool:
        """Return True once the starting process takes requests. Any exception ends the start."""

    @abstractmethod
    def start_error(self, reason: str) -> CodedError:
        """Return the error of a start that failed without an exit reason."""

    def start_phase(self) -> str:
        """Return a phrase for what the starting process does, for the error of a slow start."""
        return "starting"

    def is_waiting(self) -> bool:
        """Tell whether the starting process waits for something: this does not count as time to start."""
        return False

    async def is_answering(self) -> bool:
        """Check the heartbeat. Called every second; no answer within 1.5 s is a missed heartbeat."""
        return await self.is_ready()

    def why_unusable(self) -> str | None:
        """Return a further reason why the process, which runs, can't go on."""
        return None

    def processes(self) -> dict[int, str]:
        """Return the processes of which none may be stopped, and their names. Called every few seconds."""
        pid = self.pid
        if pid is None:
            return {}
        return {pid: "it"} | {each: f"its process {each}" for each in descendants(pid)}

    def stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    def clean_up(self) -> None:  # noqa: B027 - a hook
        """Clean up. Called after each end of the process, at least once."""

    async def launch_module(
        self,
        module: str,
        start: bytes,
        descriptors: Sequence[int],
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """Launch a program of ours, which reads ``start`` and has ``descriptors``, without our secrets."""
        command = [*with_parent(os.getpid()), python, "-m", module]
        await self.child.launch(command, environment or own_environment(), stdin=start, pass_fds=descriptors)

    @property
    def pid(self) -> int | None:
        return self.child.pid

    @property
    def is_serving(self) -> bool:
        """True if it takes requests and answers its heartbeat."""
        return self.state is ProcessState.READY

    def begin(self) -> None:
        """Start in the background; ``wait_ready`` waits for it."""
        self._starting = asyncio.create_task(self._start(), name=f"{self.part}-start")

    def check_start(self) -> None:
        """Raise the error of a first start that failed."""
        if self._starting is not None and self._starting.done():
            self._starting.result()

    async def wait_ready(self) -> None:
        """Raise the CodedError of a first start that failed, which is not tried again."""
        assert self._starting is not None, "not begun"
        await self._starting

    def kill(self, reason: str) -> None:
        """End the process at once because it can't go on; it is started again."""
        self._kill_reason = reason

    def kill_now(self) -> None:
        """End the process and all it started at once, from any thread: this process is about to end."""
        if self.pid is not None:
            self.child.kill(self._processes)
        self.clean_up()

    async def stop(self) -> None:
        """End the process and all it started: SIGTERM, a grace period, SIGKILL."""
        await self.end_supervision()
        await self._end(self.stop_signal())

    async def end_supervision(self) -> None:
        """Let the process end from now on, without a failure."""
        await cancelled(self._starting)
        await cancelled(self._supervisor)
        self.state, self.down_reason = ProcessState.STOPPED, "it was stopped"

    async def _start(self) -> None:
        await self._try_start()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"{self.part}-supervisor")

    async def _try_start(self) -> None:
        """Start the process until it is ready. Raises a CodedError, and leaves no process then."""
        self.state = ProcessState.STARTING
        self.exit_reason.clear()
        try:
            try:
                await self.launch()
                await self._await_ready()
            except BaseException:
                self.state = ProcessState.DOWN
                await self._end(self.stop_signal())
                raise
        except CodedError:
            raise
        except Exception as exc:
            raise self._start_error(f"it can't be run ({type(exc).__name__}: {exc})") from exc
        self.state, self.down_reason = ProcessState.READY, None

    async def _await_ready(self) -> None:
        deadline_s, stopped = time.monotonic() + self._start_timeout_s, StoppedWatch()
        while not await self.is_ready():
            if self.pid is not None and stopped.find([self.pid]) is not None:
                raise self._start_error("it was stopped (SIGSTOP) and did not go on")
            if (code := self.child.returncode) is not None:
                await self.child.drain_log()
                raise self._start_error(f"it ended ({how_ended(code)})")
            if self.is_waiting():
                deadline_s = time.monotonic() + self._start_timeout_s
            if time.monotonic() > deadline_s:
                limit = f"{self._start_timeout_s:g} s{self.start_limit}"
                raise self._start_error(f"not within {limit}, while {self.start_phase()}")
            await asyncio.sleep(_READY_POLL_S)

    def _start_error(self, reason: str) -> CodedError:
        return self.exit_reason.read() or self.start_error(reason)

    async def _supervise(self) -> None:
        """Replace the process each time that it fails, until it has failed too often."""
        while True:
            self._backoff.ready()
            try:
                reason = await self._failure()
            except Exception as exc:  # noqa: BLE001 - a supervisor must not end silently
                reason = f"it can't be watched ({type(exc).__name__}: {exc})"
            self.state, self.down_reason = ProcessState.DOWN, reason
            self._log(f"{self.child.name} can't go on: {reason}")
            self._backoff.failed()
            if not await self._replace(reason):
                return
            self._log(f"{self.child.name} is ready again")

    async def _replace(self, reason: str) -> bool:
        """End the process, and start others until one is ready. Return False if it failed too often."""
        failure = self.part, reason, reason
        error: CodedError | None = None
        for wait_s in self._backoff.waits_s():
            try:
                try:
                    await self._end(signal.SIGKILL)
                finally:
                    goes_on = self._report(*failure, counts=error is not None or not self.is_exposed)
                if not goes_on:
                    return False
                self._log(f"{failure[1]}; next try in {wait_s:g} s")
                await asyncio.sleep(wait_s)
                self.restarts += 1
                await self._try_start()
                return True
            except CodedError as exc:
                error = exc
            except Exception as exc:  # noqa: BLE001 - a supervisor must not end silently
                text = f"{self.child.name} could not be replaced ({type(exc).__name__}: {exc})"
                error = TritonUnknownError(reason=text)
                self._log(str(error))
                await asyncio.sleep(wait_s)
            failure = f"{self.part} start", str(error), error.sentence
        raise AssertionError("repeat has no end")

    def _report(self, part: str, reason: str, sentence: str, *, counts: bool) -> bool:
        """Report a failure. Return False if there were too many. Clients get ``sentence``."""
        goes_on = self._on_failure(ProcessFailure(part, reason, tuple(self.child.log_tail), counts))
        if not goes_on:
            self.down_reason = f"{sentence}, and it failed too often"
        return goes_on

    async def _failure(self) -> str:
        """Wait until the process can't go on, and return the reason."""
        stopped, listed_s = StoppedWatch(), 0.0
        self._kill_reason = None
        heartbeat = asyncio.create_task(self._watch_heartbeat(), name=f"{self.part}-heartbeat")
        end = asyncio.create_task(self.child.exit_code(), name=f"{self.part}-end")
        try:
            while True:
                if (code := self.child.returncode) is not None:
                    return str(self.exit_reason.read() or f"it ended ({how_ended(code)})")
                if heartbeat.done():
                    heartbeat.result()
                if time.monotonic() - listed_s > _LIST_S:
                    self._processes, listed_s = self.processes(), time.monotonic()
                if (reason := self.why_unusable() or self._kill_reason) is not None:
                    return reason
                if (pid := stopped.find(self._processes)) is not None:
                    return f"{self._processes[pid]} was stopped (SIGSTOP) and did not go on"
                # All processes in the same step of the event loop.
                await asyncio.wait([end], timeout=_WATCH_POLL_S - time.monotonic() % _WATCH_POLL_S)
        finally:
            heartbeat.cancel()
            end.cancel()

    async def _watch_heartbeat(self) -> None:
        """Kill a process that misses its heartbeat for too long."""
        answered_s, missed = time.monotonic(), 0
        while True:
            is_answering, _ = await asyncio.gather(self._is_answering(), asyncio.sleep(_HEARTBEAT_S))
            if is_answering:
                if self.state is ProcessState.UNRESPONSIVE:
                    self._log(f"{self.child.name} answers again")
                self.state, answered_s, missed = ProcessState.READY, time.monotonic(), 0
                continue
            missed += 1
            if missed == _MISSED_UNRESPONSIVE:
                self.state = ProcessState.UNRESPONSIVE
                self._log(f"{self.child.name} does not answer")
            if missed >= _MISSED_HANGING and time.monotonic() - answered_s > self.hang_timeout_s:
                self.kill(f"it did not answer for {self.hang_timeout_s:g} s")

    async def _is_answering(self) -> bool:
        try:
            return await within(self.is_answering(), _ANSWER_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - whatever it is, there is no answer
            return False

    async def _end(self, first: signal.Signals) -> None:
        """Send ``first``, wait for the end of the process, then kill all that is left of what it started."""
        self._processes = self._processes | self.processes()
        await self.child.end(first, self._processes)
        self._processes = {}
        self.clean_up()
