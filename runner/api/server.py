"""The HTTP server of the API, with the bounds of the settings, and a graceful shutdown."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp

from errors.coded_error import CodedError
from runner.api.error_response import Fields, body_of, status_of
from runner.generation.admission import Admission
from runner.http.connection import Refusal
from runner.http.connections import Limits
from runner.http.server import OTHER_FILES, HTTPServer
from runner.observability.request_id import REQUEST_ID_HEADER, request_id_of
from runner.observability.tracing import Tracing
from runner.settings.settings import Settings
from runner.supervision.child import within

_FINAL_RESPONSES_S = 3
"""Time after the grace period for the errors of requests that it ended."""
_FLUSH_S = 1.0
"""Time for the last spans, even if the collector does not answer."""


class Server:
    """A server whose running requests, at its shutdown, get E2110 after the grace period."""

    def __init__(
        self,
        application: ASGIApp,
        settings: Settings,
        requests: Admission,
        tracing: Tracing | None,
        others: Sequence[socket.socket] = (),
    ) -> None:
        """Initialize. ``others``: sockets on which other processes of the API listen."""
        self._server = HTTPServer(application, _limits(settings), word_refusal)
        self._others = others
        self._tracing = tracing
        self._requests = requests
        self._grace_s = settings.stop_grace_s
        self.stopped = asyncio.Event()

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until SIGTERM."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.stopped.set)
        await self._server.listen(listeners)
        await self._server.serve(self.stopped, self._others)
        await self._shut_down()

    async def _shut_down(self) -> None:
        self._requests.refuse("it was asked to")
        reason = f"it was asked to, and the grace period of {self._grace_s:g} s is over"
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._requests.end_all, reason)
        await self._server.shut_down(self._grace_s + _FINAL_RESPONSES_S)
        timer.cancel()
        if self._tracing is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(asyncio.to_thread(self._tracing.flush), _FLUSH_S)


def word_refusal(error: CodedError, path: str) -> Refusal:
    """Word the answer to a request that does not reach the application."""
    headers = [
        (b"content-type", b"application/json"),
        (REQUEST_ID_HEADER.lower().encode(), request_id_of(None).encode()),
    ]
    return status_of(error), headers, body_of(path)(error, Fields())


def _limits(settings: Settings) -> Limits:
    """Return the limits by the settings, and by the number of files that the process may open."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = min(settings.openai_max_connections + OTHER_FILES, most_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, most_files))
    return Limits(
        max_connections=max(num_files - OTHER_FILES, 1),
        max_head_bytes=settings.openai_max_header_bytes,
        max_body_bytes=settings.openai_max_body_bytes,
        receive_timeout_s=settings.openai_receive_timeout_s,
    )
