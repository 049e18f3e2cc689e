"""The slot's own socket: the runner sends its requests here instead of to Triton's HTTP server.

A request is one frame, and one frame has all answers of a round of the relay to a client. Through Triton each
request and each response costs several times as much, and its HTTP server can lose the last responses of a
stream (docs/measurements/tuning.md). All other clients use Triton.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from errors.triton import TritonUnknownError
from errors.wire import WireError
from runner.engines.protocol.wire import FrameReader, FrameTooLong, frame
from runner.slot.call import Call, Outputs, Problem
from runner.slot.protocol import Answer, Answers, CancelRequest, StartRequest
from runner.slot.tensors import Tensors

log = logging.getLogger("cog_triton.slot")

_BACKLOG = 16
_MAX_REQUEST_BYTES = 1 << 28
_OUTPUTS = frozenset(Answer.__struct_fields__)
"""The outputs that are sent."""


Message = StartRequest | CancelRequest
Start = Callable[[Callable[[], Tensors], Call], None]
"""Reads a request's tensors and starts it. Answers or errors go to its call."""


class SlotSocket:
    """Listens at ``path`` until it is closed. ``cancel`` takes a call that its client does not wait for."""

    def __init__(self, path: Path, start: Start, cancel: Callable[[Call], None]) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._start = start
        self._cancel = cancel
        self._connections: set[ClientConnection] = set()
        threading.Thread(target=self._accept, name="slot-socket", daemon=True).start()

    def flush(self) -> None:
        """Send all answers so far."""
        for connection in tuple(self._connections):
            connection.flush()

    def close(self) -> None:
        """Close the listener and all connections."""
        try:
            # NOTE: shutdown wakes a thread that is blocked in accept; close does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It is closed already.
        self._listener.close()
        for connection in tuple(self._connections):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            connection = ClientConnection(accepted)
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="slot-client", daemon=True).start()

    def _serve(self, connection: ClientConnection) -> None:
        try:
            connection.serve(self._start, self._cancel)
        except (msgspec.MsgspecError, FrameTooLong, UnicodeDecodeError, RecursionError) as exc:
            log.error("closed a connection to the slot's socket: malformed request (%s)", exc)
        except Exception:
            log.exception("a connection to the slot's socket failed")
        finally:
            self._connections.discard(connection)
            connection.close()


class ClientConnection:
    """One connection and its requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._calls: dict[int, SocketCall] = {}
        self._lock = threading.Lock()
        self._answers: Answers = []
        self._is_full = False
        """The socket's buffer is full: a thread is sending, and further answers wait."""

    def serve(self, start: Start, cancel: Callable[[Call], None]) -> None:
        """Start requests until the client disconnects, then cancel those that still run."""
        decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
        try:
            for messages in FrameReader(self._connection, decoder, _MAX_REQUEST_BYTES).batches():
                for message in messages:
                    self._receive(message, start, cancel)
                self.flush()  # Rejected requests have no round of the relay.
        finally:
            for call in tuple(self._calls.values()):
                cancel(call)

    def _receive(self, message: Message, start: Start, cancel: Callable[[Call], None]) -> None:
        # NOTE: also if a start uses an id again, against the rule: the answers would be mixed up.
        if (cancelled := self._calls.pop(message.request_id, None)) is not None:
            cancel(cancelled)
        if isinstance(message, StartRequest):
            name = str(message.tensors.pop("id", ""))
            call = SocketCall(self, message.request_id, name)
            self._calls[message.request_id] = call
            start(partial(_tensors, message.tensors), call)

    def answer(self, request_id: int, answer: Answer, *, is_last: bool) -> None:
        """Send an answer with the next ``flush``."""
        if is_last:
            self._calls.pop(request_id, None)
        with self._lock:
            self._answers.append((request_id, answer))

    def flush(self) -> None:
        with self._lock:
            if not self._answers or self._is_full:
                return
            data = self._take()
            try:
                sent_bytes = self._connection.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent_bytes = 0
            except OSError:
                return  # The client has disconnected, which ends ``serve``.
            if sent_bytes < len(data):
                self._is_full = True
                rest = data[sent_bytes:]
                threading.Thread(target=self._send_all, args=(rest,), name="slot-sender", daemon=True).start()

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The client was first.
        self._connection.close()

    def _take(self) -> bytes:
        answers, self._answers = self._answers, []
        return frame(self._encoder, answers)

    def _send_all(self, data: bytes) -> None:
        """Send at the pace of a slow client, in a thread, so that other clients do not wait for it."""
        while data:
            try:
                self._connection.sendall(data)
            except OSError:
                return
            with self._lock:
                data = self._take() if self._answers else b""
                self._is_full = bool(data)


class SocketCall(Call):
    """A request from the socket."""

    def __init__(self, connection: ClientConnection, number: int, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._connection = connection
        self._number = number

    def is_cancelled(self) -> bool:
        return False  # The client sends a message instead.

    def _send(self, outputs: Outputs, error: Problem | None, *, is_last: bool) -> None:
        if error is None:
            answer = Answer(**{name: _plain(value) for name, value in outputs.items() if name in _OUTPUTS})
        else:
            coded = TritonUnknownError(reason="cancelled by the client") if error == "cancelled" else error
            answer = Answer(error=WireError.of(coded))
        self._connection.answer(self._number, answer, is_last=is_last)


def _plain(value: Any) -> Any:
    """The value as in Triton's JSON: lists are flat, and a single element is bare."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = list(itertools.chain.from_iterable(value))
    return value.decode() if isinstance(value, bytes) else value


def _tensors(values: Mapping[str, Any]) -> Tensors:
    """Arrays with a batch dimension of one row."""
    return {name: _tensor(value) for name, value in values.items()}


def _tensor(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int32).reshape(1, -1)
    if isinstance(value, str):
        return np.array([[value.encode()]], dtype=object)
    if isinstance(value, float):
        # The contract's type. A larger number becomes infinite, which is rejected.
        with np.errstate(over="ignore"):
            return np.array([[value]], dtype=np.float32)
    return np.array([value if isinstance(value, list) else [value]])
