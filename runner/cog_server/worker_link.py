"""The worker's end of its link with Cog's server (``worker_watch``): does what the server asks."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from runner.cog_server.prediction_dirs import PredictionDirs
from runner.cog_server.worker_watch import UNRECOVERABLE_EXIT_CODE, VARIABLE, send_line
from runner.service import Service

_KILLED_EXIT_CODE = 1
_ERRORS_SENT_S = 0.5
"""Time for coglet to send the errors of the last requests."""


def _read_lines(link: socket.socket) -> Iterator[str]:
    """Yield lines from the other side, until it is gone."""
    with suppress(OSError), link.makefile("r") as lines:
        yield from (line.rstrip("\n") for line in lines)


def _inherited() -> socket.socket | None:
    """Return the worker's end; None on the second call and where Cog's server is not ours."""
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
