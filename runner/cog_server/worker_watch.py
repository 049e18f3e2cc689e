"""The link between Cog's server and its worker, which holds our Runner: lines over an inherited socket.

The server sends ``stop`` (drain, then end Triton), ``kill`` (end everything now) and ``ping``. The worker
(``worker_link``) sends ``hello PID``, ``ready GRACE_S``, ``stopped``, and from its event loop ``pong``. The
worker's end closes when it dies, which the server sees.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from engine.machine.processes import StoppedWatch
from runner.supervision.child import Log

VARIABLE = "COG_TRITON_WORKER_LINK_FD"
UNRECOVERABLE_EXIT_CODE = 70
_STOPPED_LIMIT_S = 2.0
_PING_S = 5.0
_MAX_UNANSWERED = 6
"""Limit in pings, not in seconds: while this process is paused it sends none."""


def send_line(link: socket.socket, line: str) -> None:
    """Send to the other side, unless it is gone."""
    with suppress(OSError):  # The other side has ended.
        link.sendall(f"{line}\n".encode())


class WorkerWatch:
    """Watch by which the server ends a worker that was stopped or hangs: coglet would wait for it.

    Call ``check`` often, ``ready`` once, and ``pong`` for each answer to a ``ping``.
    """

    def __init__(self, pid: int, send: Callable[[str], None], log: Log) -> None:
        self._pid = pid
        self._send = send
        self._log = log
        self._stopped = StoppedWatch(_STOPPED_LIMIT_S)
        self._unanswered = 0
        self._pinged_s: float | None = None

    def ready(self) -> None:
        """Expect answers from now on; until then the worker's setup may block its event loop."""
        self._pinged_s = time.monotonic()

    def pong(self) -> None:
        self._unanswered = 0

    def check(self) -> None:
        """Send the next ping; kill a worker that can't go on."""
        if self._stopped.find([self._pid]) is not None:
            self._kill("it was stopped (SIGSTOP) and did not go on")
        elif self._pinged_s is not None and time.monotonic() - self._pinged_s > _PING_S:
            if self._unanswered >= _MAX_UNANSWERED:
                self._kill(f"its event loop did not answer for {_MAX_UNANSWERED * _PING_S:g} s")
            self._pinged_s = time.monotonic()
            self._unanswered += 1
            self._send("ping")

    def _kill(self, reason: str) -> None:
        self._log(f"error: Cog's worker can't go on and is killed: {reason}")
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
