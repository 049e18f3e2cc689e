"""The link between Cog's server and its worker, which holds our Runner: lines over an inherited socket.

The server sends ``stop`` (drain, then end Triton), ``kill`` (end everything now) and ``ping``. The worker
sends ``hello PID``, ``ready GRACE_S``, ``stopped``, and from its event loop ``pong``. The worker's end closes
when it dies, which the server sees.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from engine.machine.processes import StoppedWatch
from runner.cog_server.prediction_dirs import PredictionDirs
from runner.service import Service
from runner.supervision.child import Log

VARIABLE = "COG_TRITON_WORKER_LINK_FD"
UNRECOVERABLE_EXIT_CODE = 70
_KILLED_EXIT_CODE = 1
_ERRORS_SENT_S = 0.5
"""For coglet to send the errors of the last requests."""
_STOPPED_LIMIT_S = 2.0
_PING_S = 5.0
_MAX_UNANSWERED = 6
"""Counted in pings, not in seconds: while this process is paused it sends none."""


def send_line(link: socket.socket, line: str) -> None:
    """Send to the other side, unless it is gone."""
    with suppress(OSError):  # The other side has ended.
        link.sendall(f"{line}\n".encode())


def _read_lines(link: socket.socket) -> Iterator[str]:
    """Lines from the other side, until it is gone."""
    with suppress(OSError), link.makefile("r") as lines:
        yield from (line.rstrip("\n") for line in lines)


def _inherited() -> socket.socket | None:
    """The worker's end; None on the second call and where Cog's server is not ours."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is None:
        return None
    link = socket.socket(fileno=int(descriptor))
    link.set_inheritable(False)  # Triton must not keep it open.
    send_line(link, f"hello {os.getpid()}")
    return link


class WorkerLink:
    """The worker's end: does what the server asks with ``service``, whose event loop is ``loop``."""

    def __init__(self, service: Service, dirs: PredictionDirs, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._dirs = dirs
        self._loop = loop
        self._unrecoverable: asyncio.Task[None] | None = None
        self._link = _inherited()
        if self._link is not None:
            threading.Thread(target=self._obey, args=(self._link,), name="worker-link", daemon=True).start()

    def ready(self, grace_s: float) -> None:
        """Call in the event loop, once the service is open."""
        self._dirs.open()
        if self._link is not None:
            send_line(self._link, f"ready {grace_s:g}")
        self._unrecoverable = asyncio.create_task(self._end_when_unrecoverable(), name="unrecoverable")

    def _obey(self, link: socket.socket) -> None:
        for order in _read_lines(link):
            if order == "stop":
                asyncio.run_coroutine_threadsafe(self._stop(link), self._loop)
            elif order == "ping":
                self._loop.call_soon_threadsafe(send_line, link, "pong")
            elif order == "kill":
                break
        # The server asked for it, or is gone and can answer no client any more.
        self._service.kill()
        os._exit(_KILLED_EXIT_CODE)

    async def _stop(self, link: socket.socket) -> None:
        await self._service.drain()
        await self._service.close()
        await self._dirs.close()
        send_line(link, "stopped")

    async def _end_when_unrecoverable(self) -> None:
        await self._service.unrecoverable.wait()
        await asyncio.sleep(_ERRORS_SENT_S)
        self._service.kill()
        os._exit(UNRECOVERABLE_EXIT_CODE)


class WorkerWatch:
    """The server ends a worker that was stopped or whose event loop hangs: coglet waits for such a worker.

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
