"""Run a program that must not outlive its parent: ``exec_with_parent.py PARENT_PID PROGRAM ARGUMENT...``.

Linux sends us SIGTERM when the parent is gone, however it went. We lead a process group of our own,
in the parent's session, and then become the program.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent_pid):
        return  # It went before we asked.
    os.setpgid(0, 0)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
