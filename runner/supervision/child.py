"""Child processes: they end with the runner, are signalled with all they started, and log line by line."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Log = Callable[[str], None]
"""Function that takes a line for the operator."""

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_PR_SET_PDEATHSIG = 1
_MOST_LINE_BYTES = 1 << 16
_LOG_LINES = 200
_SHOWN_LINES = 15
_LOG_END_S = 1.0
"""Limit for reading an ended process's log: a grandchild may keep the pipe open."""


def with_parent(parent_pid: int) -> list[str]:
    """Return the prefix of a command that must not outlive its parent."""
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
        self._process: _Process | None = None
        self.log_tail: deque[str] = deque(maxlen=_LOG_LINES)

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._process.pid if self._process is not None and self.returncode is None else None

    @property
    def returncode(self) -> int | None:
        """Exit code of the last process; None while it runs."""
        return self._process.transport.get_returncode() if self._process is not None else None

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
        _, self._process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(stdin, self._take_line),
            *command,
            env=environment,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
        )

    async def exit_code(self) -> int:
        """Wait for the end of the process."""
        assert self._process is not None, "not launched"
        process = self._process
        await process.ended.wait()
        code = process.transport.get_returncode()
        assert code is not None, "ended"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process and all it started, from any thread."""
        if (process := self._process) is None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # Just started, it may not lead its group yet.
            with contextlib.suppress(ProcessLookupError):
                process.transport.send_signal(number)

    def kill(self, others: Iterable[int]) -> None:
        """Kill the process, its group, and ``others`` that it started in groups of their own."""
        self.send_signal(signal.SIGKILL)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def end(self, first: signal.Signals, others: Iterable[int]) -> None:
        """Send ``first``, wait for a grace period, ``kill``; then read the rest of the log."""
        if self._process is None:
            return
        if first == signal.SIGKILL:
            self.kill(others)
        self.send_signal(first)
        try:
            await within(self._process.ended.wait(), self._stop_grace_s)
        except asyncio.TimeoutError:
            self._log(f"{self.name} did not end within {self._stop_grace_s:g} s and is killed")
        self.kill(others)
        await self.exit_code()
        await self.drain_log()

    async def drain_log(self) -> None:
        """Read the rest of the log of a process that has ended."""
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._process.log_ended.wait(), _LOG_END_S)
            self._process.transport.close()

    def last_lines(self) -> str:
        """Return the end of the log, for an error."""
        return " | ".join(list(self.log_tail)[-_SHOWN_LINES:]) or "(none)"

    def _take_line(self, line: str) -> None:
        self.log_tail.append(line)
        self._log(f"{self._log_prefix}: {line}")


class _Process(asyncio.SubprocessProtocol):
    """A process whose end is known at once. NOTE: asyncio's ``wait`` waits for a grandchild's pipes, too."""

    transport: asyncio.SubprocessTransport
    pid: int

    def __init__(self, stdin: bytes | None, take_line: Callable[[str], None]) -> None:
        self._stdin = stdin
        self._take_line = take_line
        self._rest = b""
        self.ended = asyncio.Event()
        self.log_ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport
        self.pid = transport.get_pid()
        if self._stdin is not None:
            pipe = transport.get_pipe_transport(0)
            assert isinstance(pipe, asyncio.WriteTransport)
            pipe.write(self._stdin)
            pipe.close()

    def process_exited(self) -> None:
        self.ended.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Log lines. One that is longer than the limit comes in pieces."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MOST_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take_line(line.decode(errors="replace"))

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        if fd == 1:
            if self._rest:
                self._take_line(self._rest.decode(errors="replace"))
            self.log_ended.set()


async def within(awaitable: Awaitable[T], timeout_s: float) -> T:
    """Await for at most ``timeout_s``. Raises TimeoutError.

    NOTE: up to Python 3.11 ``asyncio.wait_for`` loses a cancellation that comes in the step of the event loop
    in which it ends. A task that is cancelled for good would go on.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        await cancelled(task)


async def cancelled(task: asyncio.Future[Any] | None) -> None:
    """Cancel a task, if there is one, and wait for its end, however it ends."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
