"""Frames of typed messages over a stream socket: between the engine server, its clients and its child.

A frame is a 4-byte little-endian length and that many bytes of msgpack: a list of messages, tagged by
``type``. Everything that is sent at one time is one frame.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Generic, TypeVar

import msgspec

Message = TypeVar("Message")

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
MOST_BYTES = (1 << 32) - 1
"""Of a frame: what its length can say."""


class FrameTooLong(ValueError):
    """A frame claims more bytes than its reader takes."""


def frame(encoder: msgspec.msgpack.Encoder, messages: Sequence[object]) -> bytes:
    """Messages as one frame, ready to send."""
    body = encoder.encode(messages)
    return _LENGTH.pack(len(body)) + body


def decode_frames(
    buffer: bytearray, decoder: msgspec.msgpack.Decoder[list[Message]], max_bytes: int
) -> Iterator[list[Message]]:
    """Yield the messages of each whole frame in ``buffer``, then remove these frames from it.

    Raises FrameTooLong, and what the decoder raises for a malformed message.
    """
    start = 0
    try:
        with memoryview(buffer) as view:
            while len(view) - start >= _LENGTH.size:
                size_bytes = _LENGTH.unpack_from(view, start)[0]
                if size_bytes > max_bytes:
                    raise FrameTooLong(f"a frame claims {size_bytes} bytes")
                end = start + _LENGTH.size + size_bytes
                if end > len(view):
                    break
                yield decoder.decode(view[start + _LENGTH.size : end])
                start = end
    finally:
        del buffer[:start]


class FrameReader(Generic[Message]):
    """Reads what has arrived, batch by batch: a busy peer is drained with few system calls."""

    def __init__(
        self,
        connection: socket.socket,
        kind: type[list[Message]],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """``batches`` raises FrameTooLong for a frame of more than ``most_bytes``."""
        self._most_bytes = most_bytes
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        """What has arrived of the next frame; kept, so that iterating may stop and go on later."""

    def batches(self) -> Iterator[list[Message]]:
        """Yield the messages of each read, in order, until the peer closes the connection."""
        buffer = self._buffer
        with suppress(OSError):
            while data := self._connection.recv(_READ_BYTES):
                buffer += data
                frames = decode_frames(buffer, self._decoder, self._most_bytes)
                if messages := list(chain.from_iterable(frames)):
                    yield messages


class FrameSender:
    """A thread that sends what others queue; queueing never blocks, and what is queued goes out together."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._queue: deque[object] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        with self._wake:
            self._queue.append(message)
            self._wake.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                messages = list(self._queue)
                self._queue.clear()
            if not messages:
                return
            try:
                self._connection.sendall(frame(self._encoder, messages))
            except OSError:
                return  # The peer has closed the connection; the reader reports it.
            except Exception:
                # A message that can't be encoded, or is too long.
                self._connection.shutdown(socket.SHUT_RDWR)
                raise
