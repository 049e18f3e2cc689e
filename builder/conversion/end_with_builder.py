"""Run a program whose session ends with the builder: ``end_with_builder.py BUILDER_PID PROGRAM ARG...``.

This process leads the session, starts a watcher in it and becomes the program. When the builder has exited,
the watcher kills the whole session.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    builder_pid, *command = sys.argv[1:]
    ours = os.getpid()
    if (between := os.fork()) == 0:
        if os.fork() == 0:
            _watch(int(builder_pid), ours)
        os._exit(0)
    os.waitpid(between, 0)  # NOTE: reaped, so that the program has no child that it did not start.
    os.execv(command[0], command)  # noqa: S606


def _watch(builder_pid: int, program_pid: int) -> None:
    """Wait until one of them exits; if it is the builder, kill everything else in this session."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)  # NOTE: an inherited pipe would keep the builder waiting for more output
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        builder, program = os.pidfd_open(builder_pid), os.pidfd_open(program_pid)
    except ProcessLookupError:
        os._exit(0)
    ended, _, _ = select.select([builder, program], [], [])
    if builder in ended:
        _end_session()
    os._exit(0)


def _end_session() -> None:
    own, session = os.getpid(), os.getsid(0)
    others = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - {own}
    for pid in others:
        try:
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


if __name__ == "__main__":
    main()
