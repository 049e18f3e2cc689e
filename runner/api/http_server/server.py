"""uvicorn with the bounds of the settings, and a graceful shutdown."""

import asyncio
import contextlib
import math
import resource
import socket
from collections.abc import Sequence

import uvicorn
from starlette.types import ASGIApp

from runner.api.http_server.connections import Connections, Limits
from runner.api.http_server.protocol import BoundedProtocol
from runner.generation.admission import RequestGuard
from runner.observability.tracing import Tracing
from runner.settings.settings import Settings
from runner.supervision.client_sockets import hold_bursts

_KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep an idle connection: a client must not send on one that we close."""
_FINAL_RESPONSES_S = 3
"""After the grace period, for the errors of requests that it ended."""

_ACCEPTED_AT_ONCE = 64
"""Connections, before other clients have their turn."""
_OTHER_FILES = 640
"""Those of the process itself, and of connections that were accepted or closed in the last few steps of the
event loop, of which each accepts ``_ACCEPTED_AT_ONCE``."""

_STEPS_TO_READ = 5
"""Of the event loop, until it has read what came on a connection that was just accepted. NOTE: uvicorn closes
those without a request."""
_FLUSH_S = 1.0
"""For the last spans, even if the collector does not answer."""


class Server(uvicorn.Server):
    """Shuts down gracefully: running requests may end within the grace period; then they get E2110."""

    def __init__(
        self,
        application: ASGIApp,
        settings: Settings,
        requests: RequestGuard,
        tracing: Tracing | None,
        others: Sequence[socket.socket] = (),
    ) -> None:
        """``others``: on which other processes of the API listen."""
        self._connections = Connections(_limits(settings))
        config = uvicorn.Config(
            application,
            http=type("Protocol", (BoundedProtocol,), {"registry": self._connections}),
            ws="none",
            backlog=_ACCEPTED_AT_ONCE,
            lifespan="off",
            log_config=None,
            log_level="error",  # A warning for each malformed request would fill the log.
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(settings.stop_grace_s + _FINAL_RESPONSES_S),
        )
        super().__init__(config)
        self._others = others
        self._tracing = tracing
        self._requests = requests
        self._grace_s = settings.stop_grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            hold_bursts(each)

    async def on_tick(self, counter: int) -> bool:
        self._connections.tick()
        for listener in self._others:
            await self._accept(listener)
        return await super().on_tick(counter)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept what waits there: its process may have ended, or hang."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # BlockingIOError: no more.
            for _ in range(_ACCEPTED_AT_ONCE):
                if self.should_exit or not self._connections.has_room:
                    return
                connection, _ = listener.accept()
                await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        config = self.config
        made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._requests.refuse("it was asked to")
        reason = f"it was asked to, and the grace period of {self._grace_s:g} s is over"
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._requests.end_all, reason)
        for server in self.servers:
            server.close()
        for _ in range(_STEPS_TO_READ):
            await asyncio.sleep(0)
        await super().shutdown(sockets)
        timer.cancel()
        if self._tracing is not None:
            # NOTE: not in an exit handler: uvicorn ends the process by the signal that it received.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._tracing.flush), _FLUSH_S)


def _limits(settings: Settings) -> Limits:
    """Those of the settings, and of the number of files that the process may open."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = min(settings.openai_max_connections + _OTHER_FILES, most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, most_files))
    return Limits(
        max_connections=max(num_files - _OTHER_FILES, 1),
        max_head_bytes=settings.openai_max_header_bytes,
        max_body_bytes=settings.openai_max_body_bytes,
        receive_timeout_s=settings.openai_receive_timeout_s,
        idle_timeout_s=_KEEP_ALIVE_S,
    )
