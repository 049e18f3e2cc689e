"""The slot's connection to the engine server, for threads. Event loops have ``engines.protocol.client``."""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from errors.engines import EngineCrashed
from runner.engines.protocol.messages import FromClient, Ready, ToClient
from runner.engines.protocol.wire import FrameReader, FrameSender

_RETRY_S = 0.02
_CLOSE_TIMEOUT_S = 2.0

log = logging.getLogger("cog_triton.slot")


class EngineConnection:
    """A connection to the socket at ``path``, which is opened again whenever it closes.

    The engine server's parent listens on the socket, so that a connection waits until the engine is loaded.
    From a thread of its own it calls ``on_received`` with all messages that arrived together, and ``on_lost``
    when the connection closed: requests sent until then get no further messages.
    """

    ready: Ready
    """Message of the engine server: set after ``wait_ready``, and again when it was restarted."""

    def __init__(
        self,
        path: Path,
        on_received: Callable[[list[ToClient]], object],
        on_lost: Callable[[EngineCrashed], object],
    ) -> None:
        self._path = path
        self._on_received = on_received
        self._on_lost = on_lost
        self._socket: socket.socket | None = None
        self._sender: FrameSender | None = None
        """Sender; None while no engine is ready."""
        self._was_ready = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-connection", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait for the first engine, without a limit."""
        self._was_ready.wait()

    def check_ready(self) -> FrameSender:
        """Raise E2107 while no engine is ready."""
        if (sender := self._sender) is None:
            kind = self.ready.engine_kind
            raise EngineCrashed(engine_kind=kind, reason="it is not ready yet", was_ready=False)
        return sender

    def send(self, message: FromClient) -> None:
        """Queue a message, without blocking. Raises E2107 while no engine is ready."""
        self.check_ready().send(message)

    def close(self) -> None:
        """Close the connection, by which the engine server cancels the requests that still run."""
        self._closing.set()
        if self._socket is not None:
            with suppress(OSError):  # Not connected.
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            with suppress(OSError), socket.socket(socket.AF_UNIX) as self._socket:
                self._socket.connect(str(self._path))
                if not self._closing.is_set():
                    self._serve(self._socket)
            self._closing.wait(_RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        """Pass messages on until the connection closes."""
        reason = "its connection was closed"
        sender: FrameSender | None = None
        try:
            sender = FrameSender(connection, "engine-sender")
            for messages in FrameReader(connection, list[ToClient]).batches():
                if self._sender is None and isinstance(messages[0], Ready):
                    self.ready = messages[0]
                    self._sender = sender
                    self._was_ready.set()
                    log.info("engine ready: %s", self.ready)
                self._on_received(messages)
        except Exception as exc:
            # After a malformed frame nothing can be read from the connection any more.
            log.exception("closed the connection to the engine server")
            reason = f"{type(exc).__name__}: {exc}"
        finally:
            was_ready, self._sender = self._sender is not None, None
            with suppress(OSError):  # The engine server was first.
                connection.shutdown(socket.SHUT_RDWR)
            if sender is not None:
                sender.close()
        if was_ready and not self._closing.is_set():
            self._on_lost(EngineCrashed(engine_kind=self.ready.engine_kind, reason=reason))
