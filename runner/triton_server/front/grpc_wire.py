"""gRPC on the wire: messages of a stream, and the codes of statuses.

A message is five bytes (whether it is compressed, its length) and its content:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import re
import struct

Headers = list[tuple[bytes, bytes]]

SERVICE = "/inference.GRPCInferenceService"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 3, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
_PREFIX = struct.Struct(">BI")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class TooLong(Exception):
    """A message is compressed, or longer than the limit. ``length``: in bytes, None if it is compressed."""

    def __init__(self, length: int | None) -> None:
        super().__init__(length)
        self.length = length


def prefixed(message: bytes) -> bytes:
    return _PREFIX.pack(0, len(message)) + message


def timeout_s(header: bytes) -> float | None:
    """The value of ``grpc-timeout``; None if it is none: it is ignored then, as by gRPC's servers."""
    found = _TIMEOUT.fullmatch(header)
    return int(found[1]) * _UNITS_S[found[2]] if found is not None else None


class Messages:
    """Cuts the data of one stream into messages of at most ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    @property
    def num_bytes(self) -> int:
        """Of a message that is not complete yet."""
        return len(self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now. Raises TooLong as soon as a prefix tells so."""
        if not self._data and len(data) >= _PREFIX.size:
            is_compressed, length = _PREFIX.unpack_from(data)
            if length == len(data) - _PREFIX.size and not is_compressed and length <= self._max_bytes:
                return [data[_PREFIX.size :]]
        self._data += data
        messages = []
        while len(self._data) >= _PREFIX.size:
            is_compressed, length = _PREFIX.unpack_from(self._data)
            if is_compressed or length > self._max_bytes:
                raise TooLong(None if is_compressed else length)
            end = _PREFIX.size + length
            if len(self._data) < end:
                break
            messages.append(bytes(self._data[_PREFIX.size : end]))
            del self._data[:end]
        return messages
