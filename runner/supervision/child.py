"""Children of the runner: they end with it, are signalled with all they started, and heard line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

Log = Callable[[str], None]
"""Takes a line for the operator."""

_EXEC_WITH_PARENT = Path(__file__).with_name("exec_with_parent.py")
_END_POLL_S = 0.02


def with_parent(parent_pid: int) -> list[str]:
    """What to put before a command that must not outlive its parent."""
    # -I: neither our working folder nor PYTHONPATH matter to this script.
    return [sys.executable, "-I", str(_EXEC_WITH_PARENT), str(parent_pid)]


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of a log; one longer than the reader's limit comes in pieces."""
    buffer = b""
    while data := await stream.read(1 << 16):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if len(buffer) > 1 << 16:
            yield buffer.decode(errors="replace")
            buffer = b""
    if buffer:
        yield buffer.decode(errors="replace")


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the group that the child leads; just started, it may not lead it yet."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


async def end_of(process: asyncio.subprocess.Process) -> int:
    """Its exit code, once it has ended.

    NOTE: asyncio's own ``wait`` waits for its pipes, too, which a grandchild may keep open.
    """
    while process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it
        await asyncio.sleep(_END_POLL_S)
    return process.returncode


def exit_reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
