"""Child processes: they end with the runner, are signalled with all they started, and log line by line."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

Log = Callable[[str], None]
"""Takes a line for the operator."""

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_PR_SET_PDEATHSIG = 1
_END_POLL_S = 0.02
_READ_BYTES = 1 << 16
_LOG_LINES = 200
_SHOWN_LINES = 15
_LOG_END_S = 1.0
"""For the rest of the log of a process that has ended: a grandchild may keep the pipe open."""


def with_parent(parent_pid: int) -> list[str]:
    """What to put before a command that must not outlive its parent."""
    # -I: the script depends on neither the working folder nor PYTHONPATH.
    return [sys.executable, "-I", str(_EXEC_WITH_PARENT), str(parent_pid)]


def die_with_parent() -> None:
    """Have Linux kill this process when its parent is gone, however that ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def how_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Child:
    """One process at a time of a program that leads a process group, with the last lines of its log."""

    def __init__(self, name: str, log: Log, *, log_prefix: str, stop_grace_s: float) -> None:
        self.name = name
        self._log = log
        self._log_prefix = log_prefix
        self._stop_grace_s = stop_grace_s
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self.log_tail: deque[str] = deque(maxlen=_LOG_LINES)

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def returncode(self) -> int | None:
        """Of the last process; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: bytes | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start a process with ``stdin`` as its whole input, or none. Raises OSError."""
        self.log_tail.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=pass_fds,
        )
        assert process.stdout is not None
        self._log_task = asyncio.create_task(self._read_log(process.stdout), name=f"{self._log_prefix}-log")
        if process.stdin is not None and stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()

    async def exit_code(self) -> int:
        """Wait for the end of the process.

        NOTE: asyncio's own ``wait`` also waits for the pipes, which a grandchild may keep open.
        """
        assert self._process is not None, "not launched"
        while self._process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it
            await asyncio.sleep(_END_POLL_S)
        return self._process.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process and all it started, from any thread."""
        if (process := self._process) is None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # Just started, it may not lead its group yet.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self, others: Iterable[int]) -> None:
        """Kill the process, its group, and ``others`` that it started in groups of their own."""
        self.send_signal(signal.SIGKILL)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def end(self, first: signal.Signals, others: Iterable[int]) -> None:
        """``first``, a grace period, ``kill``; then read the rest of the log."""
        if self._process is None:
            return
        if first == signal.SIGKILL:
            self.kill(others)
        self.send_signal(first)
        try:
            await asyncio.wait_for(self.exit_code(), self._stop_grace_s)
        except asyncio.TimeoutError:
            self._log(f"{self.name} did not end within {self._stop_grace_s:g} s and is killed")
        self.kill(others)
        await self.exit_code()
        await self.drain_log()

    async def drain_log(self) -> None:
        """Read the rest of the log of a process that has ended."""
        if self._log_task is not None:
            await asyncio.wait([self._log_task], timeout=_LOG_END_S)
            self._log_task.cancel()

    def last_lines(self) -> str:
        """The end of the log, for an error."""
        return " | ".join(list(self.log_tail)[-_SHOWN_LINES:]) or "(none)"

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            self.log_tail.append(line)
            self._log(f"{self._log_prefix}: {line}")


async def cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end, however it ends."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of a log; one that is longer than the read size comes in pieces."""
    buffer = b""
    while data := await stream.read(_READ_BYTES):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if len(buffer) > _READ_BYTES:
            yield buffer.decode(errors="replace")
            buffer = b""
    if buffer:
        yield buffer.decode(errors="replace")
