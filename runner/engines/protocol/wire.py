"""Frames of typed messages over a stream socket: between the engine server, its clients and its child.

A frame is a 4-byte little-endian length and that many bytes of msgpack: a list of messages, tagged by
``type``. A reader takes no frame of more than 256 MiB.
"""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from errors.requests import InvalidTensor

Message = TypeVar("Message")

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 18
_MAX_FRAME_BYTES = 1 << 28
_TOGETHER_BYTES = 1 << 20
"""Limit of a frame of several messages."""


class FrameTooLong(ValueError):
    """A frame that claims more bytes than its reader takes."""


def frame(encoder: msgspec.msgpack.Encoder, messages: Sequence[object]) -> bytes:
    """Encode messages as one frame, ready to send."""
    body = encoder.encode(messages)
    return _LENGTH.pack(len(body)) + body


class FrameQueue:
    """Messages that wait to be sent. They are encoded at once, so that a frame has few bytes."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._encoded: deque[bytes] = deque()

    def add(self, message: object) -> None:
        """Add a message. Raises E1103 if it is larger than readers accept."""
        encoded = self._encoder.encode(message)
        if len(encoded) >= _MAX_FRAME_BYTES:
            expected = f"less than {_MAX_FRAME_BYTES} bytes"
            raise InvalidTensor(name="the size of all tensors", expected=expected, value=len(encoded))
        self._encoded.append(encoded)

    def take(self) -> bytes:
        """Return the next frame; empty if nothing waits."""
        taken: list[msgspec.Raw] = []
        size_bytes = 0
        while self._encoded and (not taken or size_bytes + len(self._encoded[0]) <= _TOGETHER_BYTES):
            encoded = self._encoded.popleft()
            size_bytes += len(encoded)
            taken.append(msgspec.Raw(encoded))
        return frame(self._encoder, taken) if taken else b""


def decode_frames(
    buffer: bytearray, decoder: msgspec.msgpack.Decoder[list[Message]]
) -> Iterator[list[Message]]:
    """Yield the messages of whole frames, then remove these. Raises FrameTooLong and the decoder's errors."""
    start = 0
    try:
        with memoryview(buffer) as view:
            while len(view) - start >= _LENGTH.size:
                size_bytes = _LENGTH.unpack_from(view, start)[0]
                if size_bytes > _MAX_FRAME_BYTES:
                    raise FrameTooLong(f"a frame claims {size_bytes} bytes")
                end = start + _LENGTH.size + size_bytes
                if end > len(view):
                    break
                yield decoder.decode(view[start + _LENGTH.size : end])
                start = end
    finally:
        del buffer[:start]


class FrameReader(Generic[Message]):
    """A reader that takes all that has arrived, so that a busy peer costs few system calls."""

    def __init__(self, connection: socket.socket, kind: type[list[Message]]) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        """Beginning of the next frame; kept, so that iterating may stop and go on later."""

    def batches(self) -> Iterator[list[Message]]:
        """Yield the messages of each read until the connection closes. Raises as ``decode_frames`` does."""
        buffer = self._buffer
        with suppress(OSError):
            while data := self._connection.recv(_READ_BYTES):
                buffer += data
                frames = decode_frames(buffer, self._decoder)
                if messages := list(chain.from_iterable(frames)):
                    yield messages


class FrameSender:
    """A thread that sends what others queue. Queueing never blocks, and queued messages go out together."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self._connection = connection
        self._queue = FrameQueue()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Send messages. Raises E1103 as ``FrameQueue.add`` does."""
        with self._wake:
            self._queue.add(message)
            self._wake.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is queued and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with suppress(OSError):  # The peer has closed the connection; the reader reports it.
            while data := self._next_frame():
                self._connection.sendall(data)

    def _next_frame(self) -> bytes:
        """Wait for the next frame; empty at the end."""
        with self._wake:
            while not (data := self._queue.take()) and not self._closing:
                self._wake.wait()
            return data
