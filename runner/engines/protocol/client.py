"""Client of the engine server for an event loop: many concurrent requests over one connection.

A stream ends with its finish reason or with a coded error: E2101 (no answer in time), E2107 (the engine is
not ready, or the connection is lost), E1009 (the reader stalled), or an error of the engine.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from errors.engines import EngineCrashed
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.connection import Connection
from runner.engines.protocol.messages import Order, Output, Ready, Statistics, Submit
from runner.engines.protocol.outlet import Outlet
from runner.engines.protocol.received_stream import ReceivedStream

_POLL_S = 0.02


class EngineOutputs:
    """Iterator over a stream. NOTE: an async generator costs several times as much."""

    def __init__(self, connection: Connection, request_id: int, stream: ReceivedStream) -> None:
        self._connection = connection
        self._request_id = request_id
        self._stream = stream
        self._is_closed = False

    def __aiter__(self) -> "EngineOutputs":
        return self

    async def __anext__(self) -> Output:
        stream = self._stream
        if self._is_closed or (stream.is_ended and not stream.has_output and stream.error is None):
            await self.aclose()
            raise StopAsyncIteration
        return await stream.take()

    def cancel(self) -> None:
        """Cancel the request: the last output has the finish reason ``cancelled``."""
        if not self._is_closed:
            self._connection.cancel(self._request_id)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._connection.close_stream(self._request_id)


class EngineClient:
    """The client of a process (``async with``). It connects again whenever the engine server was restarted.

    The engine server's parent listens for it, so that a connection waits until the engine is loaded.
    """

    def __init__(
        self,
        path: Path,
        timeout_s: float,
        engine_kind: str,
        coalescing: Coalescing | None = None,
        on_ready: Callable[[Ready], None] = lambda ready: None,
    ) -> None:
        """Initialize. ``timeout_s``: how long a request may be without an answer. ``on_ready`` is called with
        each ``Ready``, and with one that is awake when the connection of an engine that sleeps is lost."""
        self._path = path
        self._timeout_s = timeout_s
        self._engine_kind = engine_kind
        self._coalescing = coalescing
        self._on_ready = on_ready
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None]

    async def __aenter__(self) -> "EngineClient":
        self._connecting = asyncio.create_task(self._stay_connected(), name="engine-client")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_all()
        with suppress(asyncio.CancelledError):
            await self._connecting

    @property
    def is_ready(self) -> bool:
        """True while the engine is loaded and connected."""
        return self._connection is not None and self._connection.is_ready

    async def is_answering(self) -> bool:
        return self.is_ready

    @property
    def is_asleep(self) -> bool:
        ready = None if self._connection is None else self._connection.ready
        return ready is not None and ready.is_asleep

    def statistics(self) -> Statistics | None:
        """Return what the engine server told last, about a second ago; None while it is not ready."""
        return self._connection.statistics if self._connection and self.is_ready else None

    @property
    def silence_s(self) -> float:
        """Time since the last heartbeat of an engine that is ready; 0 while it is not."""
        return time.monotonic() - self._connection.alive_s if self._connection and self.is_ready else 0.0

    def end_all(self) -> None:
        """Close the client at once: every running request ends with E2107."""
        self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    def generate(self, submit: Submit, outlet: Outlet[Output] | None = None) -> EngineOutputs:
        """Send a request and yield its outputs. Raises a CodedError, as does the iteration.

        Each output has all that has arrived since the one before; the last has the finish reason. Close the
        iterator.
        """
        connection = self._ready_connection()
        return EngineOutputs(connection, *connection.open(submit, outlet))

    async def order(self, order: Order) -> None:
        """Have the engine carry out an order, and wait. Raises its error, or E2107."""
        await self._ready_connection().order(order)

    def _ready_connection(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_ready:
            raise EngineCrashed(engine_kind=self._engine_kind, reason="it is not ready yet", was_ready=False)
        return connection

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(OSError):
                _, self._connection = await loop.create_unix_connection(
                    lambda: Connection(self._timeout_s, self._engine_kind, self._coalescing, self._on_ready),
                    str(self._path),
                )
                await self._connection.disconnected.wait()
            await asyncio.sleep(_POLL_S)
