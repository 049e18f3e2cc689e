"""Run a program that must not outlive its parent: ``exec_with_parent.py PARENT_PID PROGRAM ARGUMENT...``.

A PARENT_PID of 0 stands for whoever started us.

Linux sends us SIGTERM when the parent is gone, however it went. We lead a process group of our own,
in the parent's session, are scheduled as ever (see ``supervision.scheduling``), and then become the program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if int(parent_pid) not in (0, os.getppid()):
        return  # It went before we asked.
    os.setpgid(0, 0)
    if os.sched_getscheduler(0) == os.SCHED_BATCH:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
