"""The engine server's clients: each has a connection, and gets what a round has for it as one frame."""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from runner.engines.protocol.adapter import EngineAdapter
from runner.engines.protocol.messages import (
    Cached,
    Cancel,
    Failed,
    Finished,
    FromClient,
    LogProbs,
    Submit,
    ToClient,
    TokenLogProb,
    Tokens,
)
from runner.engines.protocol.wire import FrameReader, FrameTooLong, frame
from runner.engines.server.orders import Orders
from runner.engines.server.requests import Request, Requests

log = logging.getLogger("cog_triton.engine")

_STALL_TIMEOUT_S = 60.0
"""Longest time that a client may leave its connection unread."""
_MAX_UNREAD_BYTES = 1 << 26
"""Limit of what waits for it meanwhile."""
_PIECE_BYTES = 1 << 16
_ACCEPT_RETRY_S = 0.1


class Clients:
    """Clients that connect to ``listener``, from the start until it is closed."""

    def __init__(self, listener: socket.socket, requests: Requests, engine: EngineAdapter) -> None:
        self._listener = listener
        self._requests = requests
        self._engine = engine
        self._orders = Orders(engine, self._send_ready)
        self._connections: set[ClientConnection] = set()
        self._joining = threading.Lock()
        """Lock by which the last ``Ready`` that a connection gets is the newest."""
        threading.Thread(target=self._accept, name="clients", daemon=True).start()

    def send_all(self, message: ToClient) -> None:
        """Send a message to each client, and disconnect those that do not read."""
        for connection in tuple(self._connections):
            connection.send(message)
            if connection.stalled_s > _STALL_TIMEOUT_S:
                log.error("closed a client's connection: it was not read for %g s", _STALL_TIMEOUT_S)
                connection.disconnect()

    def _send_ready(self) -> None:
        with self._joining:
            self.send_all(self._engine.ready)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError as exc:  # Too many open files, for example.
                if self._listener.fileno() < 0:
                    return
                log.error("a client could not connect: %s", exc)
                time.sleep(_ACCEPT_RETRY_S)
                continue
            connection = ClientConnection(accepted, self._requests, self._orders)
            with self._joining:
                connection.send(self._engine.ready)
                self._connections.add(connection)
            try:
                threading.Thread(target=self._serve, args=(connection,), name="client", daemon=True).start()
            except RuntimeError as exc:  # The system has no room for another thread.
                log.error("a client could not be served: %s", exc)
                self._connections.discard(connection)
                connection.close()

    def _serve(self, connection: "ClientConnection") -> None:
        try:
            connection.serve()
        except (msgspec.MsgspecError, FrameTooLong, UnicodeDecodeError, RecursionError) as exc:
            log.error("closed a client's connection: malformed message (%s)", exc)
        except Exception:
            log.exception("a client's connection failed")
        finally:
            self._connections.discard(connection)
            connection.close()


class ClientConnection:
    """One connection and its requests."""

    def __init__(self, connection: socket.socket, requests: Requests, orders: Orders) -> None:
        self._connection = connection
        self._requests = requests
        self._orders = orders
        self._encoder = msgspec.msgpack.Encoder()
        self._running: dict[int, Request] = {}
        self._lock = threading.Lock()
        """Lock of the following answers of the next frame. ``_messages`` come after the tokens."""
        self._cached: list[tuple[int, ...]] = []
        self._tokens: list[tuple[int, list[int]]] = []
        self._log_probs: list[tuple[int, list[TokenLogProb]]] = []
        self._messages: list[ToClient] = []
        self._unread = bytearray()
        """Frames, while the socket's buffer is full and a thread sends."""
        self._full_since_s: float | None = None
        """Time when that thread began to send a piece; None without it."""

    @property
    def stalled_s(self) -> float:
        """Time for which the client has read nothing."""
        since_s = self._full_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def serve(self) -> None:
        """Start requests until the client disconnects, then cancel those that still run."""
        try:
            for messages in FrameReader(self._connection, list[FromClient]).batches():
                for message in messages:
                    self._receive(message)
        finally:
            for request in tuple(self._running.values()):
                self._requests.cancel(request)

    def _receive(self, message: FromClient) -> None:
        # NOTE: also if a Submit uses an id again, against the rule: the answers would be mixed up.
        if (cancelled := self._running.get(message.request_id)) is not None:
            self._requests.cancel(cancelled)
        if isinstance(message, Submit):
            request = self._running[message.request_id] = self._requests.open(message, self)
            self._requests.submit(request)
        elif not isinstance(message, Cancel):
            self._orders.give(message, self.send)

    def send(self, message: ToClient) -> None:
        with self._lock:
            self._messages.append(message)
        self.flush()

    def respond(
        self,
        request: Request,
        tokens: list[int],
        log_probs: list[TokenLogProb],
        end: Finished | Failed | None,
    ) -> None:
        """See ``runner.engines.server.requests.Client``."""
        request_id = request.submit.request_id
        with self._lock:
            if tokens:
                self._tokens.append((request_id, tokens))
            if log_probs:
                self._log_probs.append((request_id, log_probs))
            if end is not None:
                self._messages.append(end)
                if self._running.get(request_id) is request:
                    del self._running[request_id]

    def cached(self, request: Request, counts: Sequence[int]) -> None:
        """See ``runner.engines.server.requests.Client``."""
        with self._lock:
            self._cached.append((request.submit.request_id, *counts))

    def flush(self) -> None:
        """Send the answers. An error ends this connection and nothing else."""
        with self._lock:
            try:
                if data := self._take():
                    self._send(data)
            except OSError:
                pass  # The client has disconnected, which ends ``serve``.
            except Exception:
                log.exception("closed a client's connection: it could not be answered")
                self.disconnect()

    def _send(self, data: bytes) -> None:
        """Send data. Called with the lock held."""
        if self._full_since_s is not None:
            self._unread += data
            if len(self._unread) > _MAX_UNREAD_BYTES:
                log.error("closed a client's connection: it left %d bytes unread", len(self._unread))
                self._unread.clear()
                self.disconnect()
            return
        try:
            sent_bytes = self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent_bytes = 0
        if sent_bytes < len(data):
            self._unread += data[sent_bytes:]
            self._full_since_s = time.monotonic()
            threading.Thread(target=self._send_unread, name="slow-client", daemon=True).start()

    def close(self) -> None:
        self.disconnect()
        self._connection.close()

    def disconnect(self) -> None:
        """End ``serve`` and the thread that sends."""
        with suppress(OSError):  # The client was first.
            self._connection.shutdown(socket.SHUT_RDWR)

    def _take(self) -> bytes:
        """Return the answers as a frame. Called with the lock held."""
        messages: list[ToClient] = []
        if self._cached:
            messages.append(Cached(self._cached))
            self._cached = []
        if self._log_probs:
            messages.append(LogProbs(self._log_probs))
            self._log_probs = []
        if self._tokens:
            messages.append(Tokens(self._tokens))
            self._tokens = []
        messages += self._messages
        self._messages = []
        return frame(self._encoder, messages) if messages else b""

    def _send_unread(self) -> None:
        """Send at the pace of a slow client, in a thread, so that other clients do not wait for it."""
        with suppress(OSError):  # The client has disconnected, which ends ``serve``.
            while data := self._take_piece():
                self._connection.sendall(data)

    def _take_piece(self) -> bytes:
        with self._lock:
            data = bytes(self._unread[:_PIECE_BYTES])
            del self._unread[:_PIECE_BYTES]
            self._full_since_s = time.monotonic() if data else None
            return data
