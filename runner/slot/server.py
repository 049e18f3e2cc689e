"""The slot's own socket: our runner asks here, past Triton's front end, and is answered by the round.

Both ends are ours, so a request is one frame, and one frame holds all that a round of the relay has for
a runner. Through Triton each request and each response costs several times that, and its HTTP server can
lose the last responses of a stream (docs/measurements/tuning.md). All other clients use Triton.
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
from runner.slot.protocol import Answer, Answers, Ask, Leave
from runner.slot.tensors import Tensors

log = logging.getLogger("cog_triton.slot")

_BACKLOG = 16
_MOST_ASK_BYTES = 1 << 28
_OUTPUTS = frozenset(Answer.__struct_fields__)
"""Outputs that our clients read."""


Start = Callable[[Callable[[], Tensors], Call], None]
"""Reads a request's tensors and takes it; answers its call, also with what is wrong."""


class SlotSocket:
    """Listens at ``path`` until it is closed. ``leave`` takes a call that nobody waits for."""

    def __init__(self, path: Path, start: Start, leave: Callable[[Call], None]) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._start = start
        self._leave = leave
        self._askers: set[Asker] = set()
        threading.Thread(target=self._accept, name="slot-socket", daemon=True).start()

    def flush(self) -> None:
        """Send what the calls have answered so far."""
        for asker in tuple(self._askers):
            asker.flush()

    def close(self) -> None:
        """Takes no more; who is connected sees the end."""
        try:
            # NOTE: shutdown wakes who is blocked in accept; close does not.
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # It is closed.
        self._listener.close()
        for asker in tuple(self._askers):
            asker.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            asker = Asker(connection)
            self._askers.add(asker)
            threading.Thread(target=self._serve, args=(asker,), name="slot-asker", daemon=True).start()

    def _serve(self, asker: Asker) -> None:
        try:
            asker.serve(self._start, self._leave)
        except (msgspec.MsgspecError, FrameTooLong, UnicodeDecodeError, RecursionError) as exc:
            log.error("a connection to the slot's socket was closed: what came is no request (%s)", exc)
        except Exception:
            log.exception("a connection to the slot's socket broke off")
        finally:
            self._askers.discard(asker)
            asker.close()


class Asker:
    """One connection, and its requests."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._calls: dict[int, SocketCall] = {}
        self._lock = threading.Lock()
        self._answers: Answers = []
        self._is_full = False
        """The connection takes no more for now: a thread sends, and what comes meanwhile waits."""

    def serve(self, start: Start, leave: Callable[[Call], None]) -> None:
        """Take requests until the other side is gone; then nobody waits for any of them."""
        decoder: msgspec.msgpack.Decoder[Ask | Leave] = msgspec.msgpack.Decoder(Ask | Leave)
        try:
            for messages in FrameReader(self._connection, decoder, _MOST_ASK_BYTES).batches():
                for message in messages:
                    self._take_message(message, start, leave)
                self.flush()  # Of refusals, which no round of the relay has.
        finally:
            for call in tuple(self._calls.values()):
                leave(call)

    def _take_message(self, message: Ask | Leave, start: Start, leave: Callable[[Call], None]) -> None:
        left = self._calls.pop(message.request_id, None)
        if left is not None:
            leave(
                left
            )  # NOTE: also where its number is used again, against the rule: nobody could tell them apart.
        if isinstance(message, Ask):
            name = str(message.tensors.pop("id", ""))
            call = SocketCall(self, message.request_id, name)
            self._calls[message.request_id] = call
            start(partial(_tensors, message.tensors), call)

    def answer(self, request_id: int, answer: Answer, *, is_last: bool) -> None:
        """Goes out with the next ``flush``."""
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
                return  # The other side is gone, as ``serve`` sees.
            if sent_bytes < len(data):
                self._is_full = True
                rest = data[sent_bytes:]
                threading.Thread(target=self._send_all, args=(rest,), name="slot-sender", daemon=True).start()

    def close(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side was first.
        self._connection.close()

    def _take(self) -> bytes:
        answers, self._answers = self._answers, []
        return frame(self._encoder, answers)

    def _send_all(self, data: bytes) -> None:
        """Send at the pace of a reader that is slow, so that nobody else waits for it."""
        while data:
            try:
                self._connection.sendall(data)
            except OSError:
                return
            with self._lock:
                data = self._take() if self._answers else b""
                self._is_full = bool(data)


class SocketCall(Call):
    """A request that came by the socket."""

    def __init__(self, asker: Asker, number: int, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id
        self._asker = asker
        self._number = number

    def is_cancelled(self) -> bool:
        return False  # Who leaves says so.

    def _send(self, outputs: Outputs, error: Problem | None, *, is_last: bool) -> None:
        if error is None:
            answer = Answer(**{name: _plain(value) for name, value in outputs.items() if name in _OUTPUTS})
        else:
            coded = TritonUnknownError(reason="cancelled by the client") if error == "cancelled" else error
            answer = Answer(error=WireError.of(coded))
        self._asker.answer(self._number, answer, is_last=is_last)


def _plain(value: Any) -> Any:
    """As in Triton's JSON: flat, and an only element without what is around it."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = list(itertools.chain.from_iterable(value))
    return value.decode() if isinstance(value, bytes) else value


def _tensors(values: Mapping[str, Any]) -> Tensors:
    """With the batch's dimension, which has one row."""
    return {name: _tensor(value) for name, value in values.items()}


def _tensor(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int32).reshape(1, -1)
    if isinstance(value, str):
        return np.array([[value.encode()]], dtype=object)
    if isinstance(value, float):
        # As the contract has numbers: one that is too large for it is infinite, and refused.
        with np.errstate(over="ignore"):
            return np.array([[value]], dtype=np.float32)
    return np.array([value if isinstance(value, list) else [value]])
