"""Run one program of a build: report its output live and end all of its processes with the build.

The program runs in a session of its own. A guard process, ``conversion/end_with_builder.py``, ends every
process of that session, including MPI ranks and worker pools, when the program ends, when the build fails or
is cancelled, and when this process is killed.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.machine.main_memory import ram_here_bytes
from engine.machine.processes import session_members
from engine.redact import redact_text
from engine.words import in_words
from errors.build import OutOfMemory, ProgramFailed, ProgramMissing

NAP_S = 0.2
"""Cog cancels with an exception that only running bytecode receives, so no call may block for longer."""
QUIET_REPORT_S = 60.0
"""Time without output after which a line reports that the step is still running."""

_TAIL_LINES = 20
_TAIL_CHARACTERS = 1500
_MAX_LINE_CHARACTERS = 500
_GUARD = Path(__file__).with_name("conversion") / "end_with_builder.py"
_RAM_SIGNS = re.compile(
    r"\bKilled\b|MemoryError|Cannot allocate memory|bad_alloc|process pool was terminated abruptly"
    r"|exited on signal 9|DefaultCPUAllocator"
)
_GPU_SIGNS = re.compile(
    r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation|out of memory"
    r"|Requested amount of GPU memory|OutOfMemory\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Needs:
    """Estimated peak memory of a program. 0: unknown, or it needs no GPU memory."""

    ram_bytes: int = 0
    gpu_bytes: int = 0


@dataclass(frozen=True)
class Program:
    """Program to run; ``step`` is its name in lines and errors."""

    step: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    needs: Needs = Needs()
    gpu_memory_bytes: int | None = None
    """Memory of this machine's smallest GPU."""


def run_program(program: Program, report: Callable[[str], None]) -> float:
    """Run ``program`` to its end and return its duration in seconds.

    Raises ProgramFailed with the last lines of its output, OutOfMemory and ProgramMissing.
    """
    started_s = time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def name() -> str:
        return f"{program.step} {clock(time.monotonic() - started_s)}"

    def report_line(line: str) -> None:
        tail.append(line)
        report(f"{name()} | {line}")

    child = _start(program)
    try:
        _follow(child, report_line, lambda: report(f"{name()} still running"))
        returncode = child.wait()
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
        for pid in session_members(child.pid):  # There are none, unless the guard was killed.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    elapsed_s = time.monotonic() - started_s
    if returncode != 0:
        raise _failure(program, returncode, list(tail), clock(elapsed_s))
    return elapsed_s


def clock(elapsed_s: float) -> str:
    """Format a time: ``2:05`` or ``1:02:05``."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _start(program: Program) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-IS", str(_GUARD), *program.command]
    if not (Path(program.command[0]).is_file() and os.access(program.command[0], os.X_OK)):
        raise ProgramMissing(
            what=f"{program.command[0]} can't be started",
            reason="there is no such program",
            variable="COG_TRITON_ENGINE_PYTHON",
        )
    return subprocess.Popen(
        command,
        cwd=program.folder,
        env=dict(program.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _follow(
    child: subprocess.Popen[bytes], on_line: Callable[[str], None], on_quiet: Callable[[], None]
) -> None:
    """Report each line at once, until the program has ended and closed its output."""
    assert child.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
    last_line_s = time.monotonic()
    while True:
        try:
            line = lines.get(timeout=NAP_S)
        except queue.Empty:
            if child.poll() is not None:
                return  # NOTE: a process that the program left behind may hold its output open.
            if time.monotonic() - last_line_s > QUIET_REPORT_S:
                last_line_s = time.monotonic()
                on_quiet()
            continue
        if line is None:
            return
        last_line_s = time.monotonic()
        on_line(line)


def _read_lines(output: IO[bytes], lines: queue.Queue[str | None]) -> None:
    """Put every line into ``lines`` (only the last state of a progress bar); None at the end."""
    with output:
        for raw in output:
            text = raw.decode("utf-8", "replace").rstrip().rpartition("\r")[2].strip()
            if text:
                lines.put(redact_text(text[:_MAX_LINE_CHARACTERS]))
    lines.put(None)


def _failure(program: Program, returncode: int, tail: list[str], elapsed: str) -> ProgramFailed | OutOfMemory:
    text = "\n".join(tail)
    reason = f"exit code {returncode}" if returncode > 0 else f"signal {-returncode}"
    is_killed = returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    gpu_sign, ram_sign = (None if is_killed else _GPU_SIGNS.search(text)), _RAM_SIGNS.search(text)
    if (sign := gpu_sign or ram_sign) is not None or is_killed:
        needed, present = f"{_in_words(program.needs.ram_bytes)} of memory", _in_words(ram_here_bytes())
        remedy = "use a machine with more memory, or fewer workers"
        if gpu_sign is not None:
            needed = f"{_in_words(program.needs.gpu_bytes)} of GPU memory"
            present = _in_words(program.gpu_memory_bytes)
            remedy = "lower max_batch_size, max_num_tokens or calib_size, or use more or larger GPUs"
        reason = "killed" if sign is None else f"{reason}: {sign[0]}"
        return OutOfMemory(
            step=program.step, elapsed=elapsed, reason=reason, needed=needed, present=present, remedy=remedy
        )
    return ProgramFailed(
        step=program.step, elapsed=elapsed, reason=reason, log_tail=text[-_TAIL_CHARACTERS:] or "(none)"
    )


def _in_words(count_bytes: int | None) -> str:
    return in_words(count_bytes) if count_bytes else "an unknown amount"
