"""Run a program whose session ends with it and with the builder: ``end_with_builder.py PROGRAM ARG...``.

This process leads the session and starts the program. When the program has ended, or when the builder has
exited or closed this process's stdin, it ends every other process of the session and takes over the program's
exit status.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # It runs isolated (-I).

from engine.machine.processes import session_members

_STOP_GRACE_S = 3.0


def main() -> None:
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    ended, ending = os.pipe()

    def wait() -> None:
        program.wait()
        os.close(ending)

    threading.Thread(target=wait, daemon=True).start()
    select.select([0, ended], [], [])
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + _STOP_GRACE_S
        while (others := set(session_members(os.getpid())) - {os.getpid()}) and time.monotonic() < deadline_s:
            for pid in others:
                _send(pid, number)
            time.sleep(0.02)
            program.poll()
    returncode = program.wait()
    if returncode < 0:
        _send(os.getpid(), -returncode)
    sys.exit(returncode)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
