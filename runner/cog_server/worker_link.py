"""Between Cog's server and its worker, which holds our Runner: orders to stop, and word of how it goes.

A line each way over an inherited socket. The server says ``stop`` (drain, then end Triton) or ``kill`` (end
everything now); the worker says ``hello``, ``ready GRACE_S`` and ``stopped``. Its end of the line closes when
it dies, which is how the server knows.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator

from runner.cog_server.prediction_dirs import CogFolders
from runner.service import Service

VARIABLE = "COG_TRITON_CONTROL_FD"
HOPELESS_EXIT_CODE = 70
_KILLED_EXIT_CODE = 1
_LAST_WORDS_S = 0.5
"""For Cog to hand on what the last requests ended with."""


def lines(connection: socket.socket) -> Iterator[str]:
    """What the other side says, until it is gone."""
    buffer = b""
    while data := _received(connection):
        *whole, buffer = (buffer + data).split(b"\n")
        yield from (line.decode() for line in whole)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1024)
    except OSError:
        return b""


def say(connection: socket.socket, line: str) -> None:
    """Tell the other side, unless it is gone."""
    try:
        connection.sendall(f"{line}\n".encode())
    except OSError:
        pass  # Then it needs no word of ours.


def inherited() -> socket.socket | None:
    """The worker's end, once; None where Cog's server is not ours."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is None:
        return None
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)  # Triton must not keep it open.
    say(connection, "hello")
    return connection


class WorkerControl:
    """The worker's end: does as it is told with ``service``, whose event loop is ``loop``."""

    def __init__(self, service: Service, folders: CogFolders, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._folders = folders
        self._loop = loop
        self._hopeless: asyncio.Task[None] | None = None
        self._connection = inherited()
        if self._connection is not None:
            listen = threading.Thread(
                target=self._listen, args=(self._connection,), name="control", daemon=True
            )
            listen.start()

    def ready(self, grace_s: float) -> None:
        """Call in the event loop, once the service is open."""
        self._folders.open()
        if self._connection is not None:
            say(self._connection, f"ready {grace_s:g}")
        self._hopeless = asyncio.create_task(self._end_when_hopeless(), name="hopeless")

    def _listen(self, connection: socket.socket) -> None:
        for order in lines(connection):
            if order == "stop":
                asyncio.run_coroutine_threadsafe(self._stop(connection), self._loop)
            elif order == "kill":
                break
        # Told to, or the server is gone: nobody can be answered any more.
        self._service.kill()
        os._exit(_KILLED_EXIT_CODE)

    async def _stop(self, connection: socket.socket) -> None:
        await self._service.drain()
        await self._service.close()
        await self._folders.close()
        say(connection, "stopped")

    async def _end_when_hopeless(self) -> None:
        await self._service.hopeless.wait()
        await asyncio.sleep(_LAST_WORDS_S)
        self._service.kill()
        os._exit(HOPELESS_EXIT_CODE)
