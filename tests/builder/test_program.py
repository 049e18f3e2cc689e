"""A build's programs: heard while they run, and gone with all they started whatever ends the build."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from builder import program as program_module
from builder.program import Needs, Program, clock, run_program
from errors.build import OutOfMemory, ProgramFailed, ProgramMissing
from errors.coded_error import CodedError
from tests.runner.servers import is_running, wait_until

GIB = 1 << 30
NEEDS = Needs(ram_bytes=int(35.4 * GIB), gpu_bytes=int(14.9 * GIB))
ROOT = Path(__file__).resolve().parents[2]


def python_program(folder: Path, code: str) -> Program:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return Program("build", command, folder, {**os.environ, "PYTHONUNBUFFERED": "1"}, NEEDS, 12 * GIB)


@pytest.fixture
def short_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the guard with a grace period of 0.3 s."""
    guard = tmp_path / "guard.py"
    guard.write_text(
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from builder.conversion import end_with_builder\n"
        "assert end_with_builder._STOP_GRACE_S == 3.0\n"
        "end_with_builder._STOP_GRACE_S = 0.3\n"
        "end_with_builder.main()\n"
    )
    monkeypatch.setattr(program_module, "_GUARD", guard)
    return guard


def lines_of(folder: Path, code: str) -> list[str]:
    lines: list[str] = []
    run_program(python_program(folder, code), lines.append)
    return [line.partition("| ")[2] for line in lines]


def lines_until_heard(folder: Path, code: str) -> list[str]:
    """Return the lines of a program that waits where ``code`` says so, until a line has been reported."""
    wait = f"while not pathlib.Path({str(folder / 'go')!r}).exists(): time.sleep(0.01)"
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        (folder / "go").write_text("")

    run_program(python_program(folder, "import pathlib, time\n" + code.replace("wait", wait)), report)
    return lines


def test_each_line_comes_while_the_program_runs_with_step_and_time(tmp_path: Path) -> None:
    lines = lines_until_heard(tmp_path, 'print("first")\nwait\nprint("second")')
    assert [line.partition(" | ")[2] for line in lines] == ["first", "second"]
    assert all(re.match(r"build \d+:\d\d \| ", line) for line in lines)


def test_a_silent_program_is_said_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "QUIET_REPORT_S", 0.05)
    assert lines_until_heard(tmp_path, "wait")[0].endswith("still running")


def test_of_a_progress_bar_the_last_state_is_told_of_bytes_what_can_be_and_of_secrets_nothing(
    tmp_path: Path,
) -> None:
    code = r"""
        import sys
        sys.stdout.buffer.write(b"10%\r50%\r100%\n\xff\xfe\n\n" + b"x" * 10_000 + b"\n")
        print("hf_" + "a" * 30, file=sys.stderr)
    """
    assert lines_of(tmp_path, code) == ["100%", "��", "x" * 500, "***"]


def test_a_flood_of_lines_arrives_whole(tmp_path: Path) -> None:
    assert len(lines_of(tmp_path, "for number in range(50_000): print(number)")) == 50_000


def test_what_a_program_leaves_running_is_ended_and_does_not_keep_the_build(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid)
    """
    (pid,) = lines_of(tmp_path, code)
    assert not is_running(int(pid))


STUBBORN = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], preexec_fn=os.setpgrp)
    print(os.getpid(), child.pid)
    time.sleep(600)
"""


def test_an_interrupted_build_ends_every_process_of_the_program_however_stubborn(
    tmp_path: Path, short_grace: Path
) -> None:
    pids: list[int] = []

    def report(line: str) -> None:
        pids.extend(map(int, line.partition("| ")[2].split()))
        raise KeyboardInterrupt  # as Cog's cancelling: an exception anywhere

    with pytest.raises(KeyboardInterrupt):
        run_program(python_program(tmp_path, STUBBORN), report)
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_a_killed_builder_leaves_no_program_behind(tmp_path: Path, short_grace: Path) -> None:
    builder = tmp_path / "start_a_build.py"
    builder.write_text(
        "from tests.builder.test_program import STUBBORN, python_program\n"
        "from builder import program\n"
        "from pathlib import Path\n"
        f"program._GUARD = Path({str(short_grace)!r})\n"
        "program.run_program(python_program(Path('.'), STUBBORN), lambda line: print(line, flush=True))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(builder)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in process.stdout.readline().partition("| ")[2].split()]
    assert len(pids) == 2
    assert all(map(is_running, pids))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_running, pids)))
    process.stdout.close()


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("print('why'); raise SystemExit(3)", ProgramFailed, "(exit code 3). Its last lines: why"),
        ("import os; os.kill(os.getpid(), 9)", OutOfMemory, "(killed), out of memory: it needed about 35"),
        ("raise SystemExit(137)", OutOfMemory, "this machine has 23.5 GiB"),
        ("print('torch.OutOfMemoryError: CUDA out of memory. Tried'); raise SystemExit(1)", OutOfMemory,
         "it needed about 14.9 GiB of GPU memory, this machine has 12.0 GiB"),
        ("raise MemoryError", OutOfMemory, "it needed about 35.4 GiB of memory"),
        ("print('A process in the process pool was terminated abruptly'); raise SystemExit(1)", OutOfMemory,
         "fewer workers"),
        ("import os; os.kill(os.getpid(), 11)", ProgramFailed, "signal 11"),
    ],
)  # fmt: skip
def test_a_failure_tells_what_it_was(
    tmp_path: Path, code: str, error: type[CodedError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "ram_here_bytes", lambda: int(23.5 * GIB))
    with pytest.raises(error) as caught:
        run_program(python_program(tmp_path, code), lambda line: None)
    assert text in caught.value.sentence


def test_a_program_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissing, match="trtllm-build"):
        run_program(Program("build", [str(tmp_path / "trtllm-build")], tmp_path, {}), print)


@pytest.mark.parametrize(("elapsed_s", "text"), [(0, "0:00"), (125.9, "2:05"), (3725, "1:02:05")])
def test_time_is_told_as_a_clock_does(elapsed_s: float, text: str) -> None:
    assert clock(elapsed_s) == text
