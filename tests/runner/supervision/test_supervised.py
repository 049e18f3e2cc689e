"""A supervised process: noticed when it ends, is stopped, or hangs; started again; given up."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from errors.coded_error import CodedError
from errors.triton import StartFailed
from runner.supervision import failures as failures_module
from runner.supervision import supervised
from runner.supervision.child import with_parent, within
from runner.supervision.failures import Backoff, FailureLog, ProcessFailure
from runner.supervision.supervised import ProcessState, SupervisedProcess
from tests import fast
from tests.runner.servers import DEADLINE_S, is_running

_PROGRAM = """
import os, socket, subprocess, sys, time
path, has_child = sys.argv[1:]
if has_child == "1":
    # In a group of its own, as a rank under mpirun is.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=os.setpgrp)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path + ".new")
listener.listen(100)
os.rename(path + ".new", path)
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    if connection.recv(100) == b"hang":
        time.sleep(600)
    connection.sendall(b"ok")
    connection.close()
"""


class Program(SupervisedProcess):
    """A real process that answers on a Unix socket, and hangs when it is asked to."""

    part = "program"
    log_prefix = "program"
    start_limit = ""

    def __init__(
        self,
        folder: Path,
        log: FailureLog | None = None,
        *,
        has_child: bool = False,
        hang_timeout_s: float = 600,
        start_timeout_s: float = DEADLINE_S,
        is_exposed: bool = False,
    ) -> None:
        self.lines: list[str] = []
        self.path = folder / "socket"
        self.python = sys.executable
        self.has_child = has_child
        self.cleaned_up = 0
        self.failures: list[ProcessFailure] = []
        """Failures, after each of which it is started again; without ``log``."""
        super().__init__("the program", self.lines.append, log.add if log else self._failed, start_timeout_s)
        self.hang_timeout_s, self.is_exposed = hang_timeout_s, is_exposed

    def _failed(self, failure: ProcessFailure) -> bool:
        self.failures.append(failure)
        return True

    async def launch(self) -> None:
        self.path.unlink(missing_ok=True)
        program = [self.python, "-c", _PROGRAM, str(self.path), str(int(self.has_child))]
        await self.child.launch([*with_parent(os.getpid()), *program], dict(os.environ))

    async def is_ready(self) -> bool:
        return self.path.exists() and await self.is_answering()

    async def is_answering(self) -> bool:
        reader, writer = await asyncio.open_unix_connection(self.path)
        writer.write(b"beat")
        answer = await reader.read()
        writer.close()
        return answer == b"ok"

    def start_error(self, reason: str) -> CodedError:
        return StartFailed(who="It", reason=reason, log_tail=self.child.last_lines())

    def clean_up(self) -> None:
        self.cleaned_up += 1

    def hang(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.path))
            connection.sendall(b"hang")


async def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


@asynccontextmanager
async def started(program: Program) -> AsyncIterator[int]:
    """Provide a program that serves, and its process id; stopped at the end."""
    try:
        program.begin()
        await program.wait_ready()
        assert (program.state.value, program.down_reason) == ("ready", None)
        pid = program.pid
        assert pid is not None
        yield pid
    finally:
        await program.stop()
    assert not is_running(pid)
    assert (program.state.value, program.down_reason) == ("stopped", "it was stopped")


@pytest.mark.parametrize(
    ("number", "reason"),
    fast.few(
        [
            (signal.SIGKILL, "it ended (killed by SIGKILL)"),
            (signal.SIGTERM, "it ended (killed by SIGTERM)"),
            (signal.SIGSTOP, "it was stopped (SIGSTOP) and did not go on"),
        ]
    ),
)
async def test_a_process_that_ends_or_is_stopped_is_replaced(
    tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    program = Program(tmp_path)
    async with started(program) as pid:
        os.kill(pid, number)
        await until(lambda: program.down_reason)
        assert str(program.down_reason) == reason
        await until(lambda: program.is_serving)
        assert program.restarts == 1
        assert program.pid != pid
        assert not is_running(pid)
        assert program.cleaned_up == 1
        assert await program.is_answering()
    assert program.failures == [ProcessFailure("program", reason, ("listening",))]


@pytest.mark.parametrize("number", fast.few([signal.SIGSTOP, signal.SIGKILL]))
async def test_a_stopped_descendant_takes_all_with_it_and_one_that_ended_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(supervised, "_LIST_S", 0.1)
    program = Program(tmp_path, has_child=True)
    async with started(program) as pid:
        await until(lambda: len(program.processes()) == 2)
        descendant = max(program.processes().keys() - {pid})
        os.kill(descendant, number)
        if number == signal.SIGKILL:
            await until(lambda: not is_running(descendant))
            await asyncio.sleep(1)
            assert program.is_serving
            assert program.restarts == 0
            return
        await until(lambda: program.restarts == 1 and program.is_serving)
        assert f"its process {descendant} was stopped (SIGSTOP)" in "".join(program.lines)
        await until(lambda: not is_running(pid) and not is_running(descendant))
        descendants = program.processes()
        assert len(descendants) == 2
    await until(lambda: not any(map(is_running, descendants)))


@pytest.mark.slow
async def test_a_process_that_hangs_is_unresponsive_then_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "_HEARTBEAT_S", 0.1)
    monkeypatch.setattr(supervised, "_ANSWER_TIMEOUT_S", 0.5)
    program = Program(tmp_path, hang_timeout_s=2)
    async with started(program) as pid:
        program.hang()
        await until(lambda: program.state is ProcessState.UNRESPONSIVE)
        assert not program.is_serving
        assert program.down_reason is None
        assert program.pid == pid
        await until(lambda: program.restarts == 1 and program.is_serving)
        assert program.pid != pid
    assert [failure.reason for failure in program.failures] == ["it did not answer for 2 s"]


async def test_a_process_that_answers_again_serves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "_HEARTBEAT_S", 0.1)
    answers = [True]
    program = Program(tmp_path)
    real = program.is_answering

    async def is_answering() -> bool:
        return answers[0] and await real()

    monkeypatch.setattr(program, "is_answering", is_answering)
    async with started(program) as pid:
        for _ in range(2):
            answers[0] = False
            await until(lambda: program.state is ProcessState.UNRESPONSIVE)
            answers[0] = True
            await until(lambda: program.is_serving)
        assert program.pid == pid
        assert program.restarts == 0
        told = [line for line in program.lines if "the program " in line]
        assert told == ["the program does not answer", "the program answers again"] * 2


async def test_a_start_that_fails_is_tried_again_whatever_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is missing, one that ends, and an error of ``launch`` itself."""
    monkeypatch.setattr(failures_module, "BACKOFF_S", (0.01,))
    program = Program(tmp_path)
    async with started(program) as pid:
        real = program.launch

        async def launch() -> None:
            program.path.unlink(missing_ok=True)
            match program.restarts:
                case 1:
                    raise OSError(24, "Too many open files")
                case 2:
                    await program.child.launch([sys.executable, "-c", "exit(3)"], {})
                case 3:
                    raise ValueError("not a program")
                case _:
                    await real()

        monkeypatch.setattr(program, "launch", launch)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: program.restarts == 4 and program.is_serving)
    first, *starts = program.failures
    assert first.part == "program"
    assert {failure.part for failure in starts} == {"program start"}
    assert "OSError: [Errno 24] Too many open files" in starts[0].reason
    assert "it ended (exit code 3)" in starts[1].reason
    assert "ValueError: not a program" in starts[2].reason


async def test_a_first_start_that_fails_raises_and_leaves_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.python = str(tmp_path / "missing")
    program.begin()
    with pytest.raises(StartFailed, match="it ended"):
        await program.wait_ready()
    assert (program.state.value, program.pid) == ("down", None)
    await program.stop()
    assert program.state.value == "stopped"


@pytest.mark.slow
async def test_a_start_that_takes_too_long_fails_unless_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_until_s = time.monotonic() + 1
    program = Program(tmp_path, start_timeout_s=0.1)

    async def never() -> bool:
        return False

    monkeypatch.setattr(program, "is_ready", never)
    monkeypatch.setattr(program, "is_waiting", lambda: time.monotonic() < waits_until_s)
    program.begin()
    with pytest.raises(StartFailed, match=r"not within 0\.1 s, while starting"):
        await program.wait_ready()
    assert time.monotonic() > waits_until_s
    assert program.pid is None
    await program.stop()


async def test_hooks_that_raise_do_not_end_the_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path)

    def why_unusable() -> str | None:
        if program.restarts == 0:
            raise RuntimeError("no idea")
        return None

    async with started(program):
        monkeypatch.setattr(program, "why_unusable", why_unusable)
        await until(lambda: program.restarts == 1 and program.is_serving)
    assert [failure.reason for failure in program.failures] == ["it can't be watched (RuntimeError: no idea)"]


@pytest.mark.parametrize("hook", fast.few(["clean_up", "processes", "on_failure", "start_error"]))
async def test_errors_while_a_process_is_replaced_are_logged_with_a_code_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(failures_module, "BACKOFF_S", (0.01,))
    program = Program(tmp_path)
    place = "_on_failure" if hook == "on_failure" else hook
    real, num_errors = getattr(program, place), 0

    def fail_twice(*arguments: object) -> object:
        nonlocal num_errors
        if program.state is not ProcessState.READY and num_errors < 2:
            num_errors += 1
            raise RuntimeError("no idea")
        return real(*arguments)

    async with started(program) as pid:
        monkeypatch.setattr(program, place, fail_twice)
        if hook == "start_error":
            monkeypatch.setattr(program, "python", str(tmp_path / "missing"))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: num_errors == 2)
        program.python = sys.executable
        await until(lambda: program.is_serving)
        assert program.pid != pid
        assert not is_running(pid)
        said = "E2100 TritonUnknownError: Unknown error: the program could not be replaced"
        assert f"{said} (RuntimeError: no idea)" in "\n".join(program.lines)


def test_a_failure_that_can_not_be_reported_counts() -> None:
    def report(failure: ProcessFailure) -> str:
        raise KeyError("started_s")

    lines: list[str] = []
    unrecoverable = asyncio.Event()
    log = FailureLog(report, 2, 600, lines.append, unrecoverable)
    assert log.add(ProcessFailure("program", "it ended", ()))
    assert not log.add(ProcessFailure("program", "it ended", ()))
    assert "KeyError: 'started_s'" in lines[0]


async def test_after_too_many_failures_it_stays_down_and_the_runner_is_told(tmp_path: Path) -> None:
    unrecoverable = asyncio.Event()
    lines: list[str] = []
    log = FailureLog(str, 2, 600, lines.append, unrecoverable)
    program = Program(tmp_path, log)
    async with started(program) as pid:
        os.kill(pid, signal.SIGKILL)
        await until(lambda: program.restarts == 1 and program.is_serving)
        assert not unrecoverable.is_set()
        os.kill(program.pid, signal.SIGKILL)
        await asyncio.wait_for(unrecoverable.wait(), DEADLINE_S)
        await until(lambda: "failed too often" in (program.down_reason or ""))
        assert program.state is ProcessState.DOWN
        assert program.pid is None


async def test_a_kill_for_a_reason_of_its_own_is_a_failure_too(tmp_path: Path) -> None:
    program = Program(tmp_path)
    async with started(program) as pid:
        program.kill("its engine is lost")
        await until(lambda: program.restarts == 1 and program.is_serving)
        assert not is_running(pid)
    assert [failure.reason for failure in program.failures] == ["its engine is lost"]


async def test_kill_now_ends_all_at_once_from_any_thread(tmp_path: Path) -> None:
    program = Program(tmp_path, has_child=True)
    async with started(program) as pid:
        await until(lambda: len(program._processes) == 2)
        pids = [pid, *program._processes]
        await asyncio.to_thread(program.kill_now)
        await until(lambda: not any(map(is_running, pids)))


def test_a_cancellation_is_heard_in_the_step_in_which_the_wait_ends() -> None:
    async def wait_and_cancel(num_steps: int) -> bool:
        event = asyncio.Event()
        waiting = asyncio.create_task(within(event.wait(), DEADLINE_S))
        await asyncio.sleep(0.01)
        event.set()
        for _ in range(num_steps):
            await asyncio.sleep(0)
        is_asked = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() or not is_asked, num_steps
        return is_asked

    asked = [asyncio.run(wait_and_cancel(num_steps)) for num_steps in range(10)]
    assert asked[0]
    assert not asked[-1]


async def test_what_clients_may_end_is_started_again_as_often_as_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its starts that fail count."""
    monkeypatch.setattr(failures_module, "BACKOFF_S", (0.01,))
    unrecoverable = asyncio.Event()
    log = FailureLog(str, 2, 600, lambda line: None, unrecoverable)
    program = Program(tmp_path, log, is_exposed=True)
    async with started(program):
        for number in range(4):
            os.kill(program.pid, signal.SIGKILL)
            await until(lambda number=number: program.restarts == number + 1 and program.is_serving)
        assert not unrecoverable.is_set()
        program.python = "/no/such/python"
        os.kill(program.pid, signal.SIGKILL)
        await asyncio.wait_for(unrecoverable.wait(), DEADLINE_S)


def test_a_process_that_fails_soon_after_each_start_is_started_later_each_time() -> None:
    backoff = Backoff()
    first_s = []
    for _ in range(12):
        backoff.ready()
        backoff.failed()
        first_s.append(next(backoff.waits_s()))
    assert first_s[:4] == [0.0, 0.5, 1.0, 2.0]
    assert first_s[-1] == 30.0
    backoff._ready_s -= 100
    backoff.failed()
    assert next(backoff.waits_s()) == 0.0
