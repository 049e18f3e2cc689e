"""Run a program that must not outlive its parent: ``exec_with_parent.py PARENT_PID PROGRAM ARGUMENT...``.

A PARENT_PID of 0 stands for the parent, whichever process that is.

Linux sends the program SIGTERM when the parent ends, in whatever way. The program leads a process group, in
the parent's session or its own, and is scheduled by default (see ``supervision.tuning``).
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
        return  # The parent ended before prctl.
    if os.getsid(0) != os.getpid():  # The leader of a session leads a group already.
        os.setpgid(0, 0)
    if os.sched_getscheduler(0) == os.SCHED_BATCH:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
