"""Triton as a supervised child, and its stubs, of which it notices neither an end nor a stop."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from engine.machine.mpirun import mpi_environment
from engine.machine.processes import children_by_parent, name_of, signal_that_ended
from errors import find_in_text
from errors.coded_error import CodedError
from errors.triton import StartFailed
from runner.supervision.child import Log
from runner.supervision.failures import ProcessFailure
from runner.supervision.health import answers_ok, ask
from runner.supervision.supervised import SupervisedProcess
from runner.triton_server.command import TritonCommand
from runner.triton_server.model_names import SLOT, SLOT_PATH
from runner.triton_server.statistics import statistics_of

_ENDED_STUB_S = 5.0
"""Time for Triton to notice by itself that a stub has ended, while it starts."""
_CRASHED_S = 2.0
"""Time for a Triton that has caught a crash to end."""
_LOADED_S = 60.0
"""Time for Triton to load its models once the engine serves: it takes seconds."""
_SHOWN_ERROR_LINES = 3
_ERROR_LINE = re.compile(r"E\d{4} |error:|terminate called")
_CRASH = re.compile(r"Signal \((?:6|11)\) received\.")
_LOADING = re.compile(r'"loading: ([\w.-]+):\d+"|"successfully loaded \'([\w.-]+)\'')
_UNHEALTHY = "is not healthy"
"""Triton's words for a stub that missed its heartbeat."""
_PROBE = b'{"id":"health","stop":true,"request_output_len":1,"input_ids":[0],"input_lengths":1}'
_MODEL = re.compile(rb"/([^/\0]+)/1/model\.py")


class TritonServer(SupervisedProcess):
    """One tritonserver at a time."""

    part = "triton"
    log_prefix = "triton"

    def __init__(
        self,
        command: TritonCommand,
        log: Log,
        is_waiting: Callable[[], bool],
        on_failure: Callable[[ProcessFailure], bool],
        on_restart: Callable[[], object],
        *,
        has_engine: bool,
    ) -> None:
        """Initialize. ``is_waiting``: the models wait for the engine. ``has_engine``: it is Triton's own."""
        settings = command.settings
        super().__init__("Triton", log, on_failure, settings.triton_start_timeout_s)
        self.hang_timeout_s, self.is_exposed = settings.triton_hang_timeout_s, not has_engine
        self._heartbeat = Heartbeat(command.ports.http_url, command.ports.metrics_url)
        self._on_restart = on_restart
        self._command = command
        self._is_waiting = is_waiting
        self._stubs: dict[int, str] | None = None
        self._starting_stubs = StartingStubs()
        self._crashed_s: float | None = None
        self._has_engine = has_engine
        self._loading_s: float | None = None
        self._is_first_try = True
        self._is_stuck = False

    async def launch(self) -> None:
        self._starting_stubs, self._crashed_s = StartingStubs(), None
        self._loading_s, self._is_stuck = None, False
        if self.restarts:
            self._on_restart()
        await self.child.launch(self._command.words(), mpi_environment(self._command.install.environment()))

    async def _try_start(self) -> None:
        """Start Triton, and once more if it aborts, loses a stub or never stops loading.

        None of these says anything about the engine. On an overloaded machine Triton's Python backend may not
        get a lock or a stub's heartbeat within the second that it waits, or may never read the message that a
        stub is ready; and the kernel may have killed a stub.
        """
        self._is_first_try = True
        try:
            await super()._try_start()
        except CodedError as exc:
            has_lost_stub = any(_UNHEALTHY in line for line in self.child.log_tail)
            has_lost_stub = has_lost_stub or self._starting_stubs.ended is not None
            if self.child.returncode != -signal.SIGABRT and not has_lost_stub and not self._is_stuck:
                raise
            self._log(f"{exc.sentence}; it is started once more")
            self._is_first_try = False
            await super()._try_start()

    async def is_ready(self) -> bool:
        is_ready = await answers_ok(f"{self._command.ports.http_url}/v2/health/ready")
        if is_ready:
            # All have it open by now: without a name it is freed when the last of them ends.
            self._remove_shared_memory()
        elif self.pid is not None and (ended := self._starting_stubs.find_ended(self.pid)) is not None:
            raise self._start_error(ended)
        elif self._loads_too_long():
            self._is_stuck = True
            reason = f"it went on {self.start_phase()} for {_LOADED_S:g} s although the engine was ready"
            raise self._start_error(reason)
        return is_ready

    def _loads_too_long(self) -> bool:
        """Return True if models that need no engine have been loading for long. A second try may."""
        waits_for_engine = self._has_engine or self.is_waiting()
        if waits_for_engine or not self._is_first_try or not self.start_phase().startswith("loading"):
            self._loading_s = None
        elif self._loading_s is None:
            self._loading_s = time.monotonic()
        return self._loading_s is not None and time.monotonic() - self._loading_s > _LOADED_S

    def start_phase(self) -> str:
        events = [found.groups() for line in self.child.log_tail if (found := _LOADING.search(line))]
        loaded = {loaded for _, loaded in events}
        models = [model for model, _ in events if model and model not in loaded]
        phase = f"loading {', '.join(models)}" if models else "starting tritonserver"
        # A longer timeout seldom helps: Triton loads its models within seconds.
        return phase if self._is_first_try else f"{phase} for the second time: give it more processor time"

    def is_waiting(self) -> bool:
        return self._is_waiting()

    async def is_answering(self) -> bool:
        return await self._heartbeat.is_alive()

    def start_error(self, reason: str) -> CodedError:
        """Return the coded error in the log (an engine's, say), else E2106 with the log's first errors."""
        log = self.child.log_tail
        # Triton also prints it in a table.
        causes = (find_in_text(line.rstrip(" |")) for line in reversed(log))
        if (cause := next(filter(None, causes), None)) is not None:
            return cause
        # The first name the cause; with several ranks, mpirun ends the others while they load.
        errors = [line for line in log if _ERROR_LINE.match(line)][:_SHOWN_ERROR_LINES]
        return StartFailed(
            who="Triton", reason=reason, log_tail=" | ".join(errors) or self.child.last_lines()
        )

    def processes(self) -> dict[int, str]:
        """Return Triton and the stubs that it had when it became ready."""
        if self.pid is None:
            return {}
        if self._stubs is None:
            self._stubs = {pid: _described(pid) for pid in _stubs_of(self.pid)}
        return {self.pid: "its server"} | self._stubs

    def why_unusable(self) -> str | None:
        ends = (_end_of(pid, name) for pid, name in (self._stubs or {}).items())
        return next(filter(None, ends), None) or self._crash()

    def _crash(self) -> str | None:
        """Tell of a crash that Triton has caught: it prints a stack trace, for which it may wait for ever."""
        if self._crashed_s is None and any(map(_CRASH.match, self.child.log_tail)):
            self._crashed_s = time.monotonic()
        has_hung = self._crashed_s is not None and time.monotonic() - self._crashed_s > _CRASHED_S
        return "it crashed and did not end" if has_hung else None

    def stop_signal(self) -> signal.Signals:
        # Triton reacts to SIGTERM only once its models are loaded, which may wait for an engine or a stub.
        is_stuck = self.is_waiting() or self._starting_stubs.ended is not None or self._is_stuck
        return signal.SIGKILL if is_stuck else signal.SIGTERM

    def clean_up(self) -> None:
        self._stubs = None
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        """Remove the names of Triton's shared memory: killed while it starts, it leaves them behind."""
        for region in Path("/dev/shm").glob(f"{self._command.shm_prefix}*"):  # noqa: S108
            region.unlink(missing_ok=True)


class Heartbeat:
    """Heartbeat of the Triton at ``url``: the slot's answer without the engine, or its executions."""

    def __init__(self, url: str, metrics_url: str) -> None:
        self._url = url
        self._metrics_url = metrics_url
        self._executions: int | None = None

    async def is_alive(self) -> bool:
        """Return True if Triton and the slot answer, or have run requests: ours waits behind all others."""
        before, self._executions = self._executions, await self._count_executions()
        if self._executions not in (None, before):
            return True
        return await ask(f"{self._url}{SLOT_PATH}/generate", _PROBE) is not None

    async def _count_executions(self) -> int | None:
        """Count what the slot has run, without a request to it; None without an answer."""
        answer = await ask(self._metrics_url)
        if answer is None:
            return None
        try:
            (slot, *_) = statistics_of(answer.content.decode(errors="replace"), SLOT)
        except CodedError:
            return None
        return int(slot["execution_count"])


class StartingStubs:
    """The stubs of a Triton that starts."""

    def __init__(self) -> None:
        self.ended: str | None = None
        """Name of the one that has ended, and how, if Triton has not noticed it."""
        self._names: dict[int, str] = {}
        self._ended_since_s: dict[int, float] = {}
        self._next_s = time.monotonic()

    def find_ended(self, triton_pid: int) -> str | None:
        """Look once a second; return ``ended``."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + 1.0
        before, self._ended_since_s = self._ended_since_s, {}
        for pid in _stubs_of(triton_pid):
            if signal_that_ended(pid) is None:
                self._names[pid] = _described(pid)
                continue
            self._ended_since_s[pid] = before.get(pid, now_s)
            if now_s - self._ended_since_s[pid] >= _ENDED_STUB_S:
                self.ended = _end_of(pid, self._names.get(pid, "one of its processes"))
        return self.ended


def _end_of(pid: int, name: str) -> str | None:
    """Tell how a process of Triton ended; return None while it runs."""
    if (number := signal_that_ended(pid)) is None:
        return None
    return f"{name} ended ({f'killed by {signal.Signals(number).name}' if number else 'by itself'})"


def _stubs_of(triton_pid: int) -> list[int]:
    """Return the process ids of Triton's children; of mpirun's Tritons, and of theirs."""
    by_parent = children_by_parent()
    children = by_parent.get(triton_pid, [])
    tritons = [pid for pid in children if name_of(pid) == "tritonserver"]
    return children + [stub for pid in tritons for stub in by_parent.get(pid, [])]


def _described(pid: int) -> str:
    """Describe a process of Triton that runs, in an operator's words."""
    try:
        model = _MODEL.search((Path("/proc") / str(pid) / "cmdline").read_bytes())
    except OSError:
        model = None  # It is gone.
    return f"the process of its Python model {model[1].decode()}" if model else "one of its processes"
