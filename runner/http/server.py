"""A server of HTTP/1: its sockets, its clock, and a graceful shutdown."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp

from runner.http.connection import HTTPConnection, WordRefusal
from runner.http.connections import Connections, Limits
from runner.supervision.child import within
from runner.supervision.client_sockets import hold_bursts

_TICK_S = 0.1
_ACCEPTED_AT_ONCE = 64
"""Number of connections that are accepted before other clients have their turn."""
OTHER_FILES = 640
"""Number of files that are not open connections: the process's own, and those of connections that were
accepted or closed in the last few steps of the event loop, of which each accepts ``_ACCEPTED_AT_ONCE``."""
_STEPS_TO_READ = 5
"""Number of steps of the event loop until it has read what came on a connection that was just accepted."""


class HTTPServer:
    """A server that answers requests on some sockets by an application."""

    def __init__(self, application: ASGIApp, limits: Limits, word_refusal: WordRefusal) -> None:
        self.connections = Connections(limits)
        self._application = application
        self._word_refusal = word_refusal
        self._servers: list[asyncio.Server] = []

    def connection(self) -> HTTPConnection:
        return HTTPConnection(self._application, self.connections, self._word_refusal)

    async def listen(self, listeners: Sequence[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        for each in listeners:
            server = await loop.create_server(self.connection, sock=each, backlog=_ACCEPTED_AT_ONCE)
            self._servers.append(server)
            hold_bursts(each)

    async def serve(self, stopped: asyncio.Event, others: Sequence[socket.socket] = ()) -> None:
        """Watch the connections until ``stopped``. ``others``: sockets on which other processes listen."""
        while not stopped.is_set():
            self.connections.tick()
            for listener in others:
                await self._accept(listener, stopped)
            with contextlib.suppress(asyncio.TimeoutError):
                await within(stopped.wait(), _TICK_S)

    async def _accept(self, listener: socket.socket, stopped: asyncio.Event) -> None:
        """Accept connections that wait for another process, which may have ended or hang."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # BlockingIOError: no more.
            for _ in range(_ACCEPTED_AT_ONCE):
                if stopped.is_set() or not self.connections.has_room:
                    return
                accepted, _ = listener.accept()
                await loop.connect_accepted_socket(self.connection, accepted)

    async def shut_down(self, timeout_s: float) -> None:
        """Accept no more connections, answer received requests, and cancel those that take longer."""
        for server in self._servers:
            server.close()
        for _ in range(_STEPS_TO_READ):
            await asyncio.sleep(0)
        for connection in self.connections:
            connection.shut_down()
        end_s = asyncio.get_running_loop().time() + timeout_s
        while list(self.connections) or self.connections.tasks:
            if asyncio.get_running_loop().time() > end_s:
                for task in self.connections.tasks:
                    task.cancel()
                return
            await asyncio.sleep(_TICK_S / 2)
