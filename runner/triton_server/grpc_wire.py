"""gRPC on the wire: messages of a stream, the codes of statuses, and bounds of a ``ModelInferRequest``.

A message is five bytes (whether it is compressed, its length) and its content:
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
Parsed, a message can take 30 times its size: a field of two bytes becomes an object. So fields are counted
first. The wire format: https://protobuf.dev/programming-guides/encoding/
"""

import re
import struct
from collections.abc import Iterator

from errors.triton_front import InvalidInference

Headers = list[tuple[bytes, bytes]]

SERVICE = "/inference.GRPCInferenceService"
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 3, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
MAX_FIELDS = 4096
"""Limit of a request's fields, without the values of tensors: a client's request has less than 100."""
MAX_TYPED_BYTES = 1 << 20
"""Limit of values in ``contents``: parsed, one byte can take eight. Today's clients don't send any."""
MAX_NAME_BYTES = 1 << 10
"""Limit of a model's or tensor's name, type and shape, and of the request's id."""
FRAME_HEAD = struct.Struct(">HBBBI")
"""Head of a frame of HTTP/2: its length in 24 bits, kind, flags and stream."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ID, _PARAMETERS, _INPUTS, _OUTPUTS = 3, 4, 5, 6
_SHAPE, _CONTENTS = 3, 5
"""Fields of an input."""
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
    """Read ``grpc-timeout``. Return None for a malformed one, which gRPC's servers ignore."""
    found = _TIMEOUT.fullmatch(header)
    return int(found[1]) * _UNITS_S[found[2]] if found is not None else None


class Messages:
    """Parser of one stream's data into messages of at most ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    @property
    def num_bytes(self) -> int:
        """Number of bytes of a message that is not complete yet."""
        return len(self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete now. Raises TooLong as soon as a prefix tells so."""
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


def check_wire(message: bytes) -> None:
    """Raise InvalidInference (E1107) for a message with too many fields, or a malformed one."""
    view = memoryview(message)
    num_fields = 0
    typed_bytes = 0
    for number, start, end in _fields(view, 0, len(view)):
        num_fields += 1
        if number in (_PARAMETERS, _INPUTS, _OUTPUTS):
            for inner, first, last in _fields(view, start, end):
                num_fields += 1
                if number == _INPUTS and inner == _CONTENTS:
                    typed_bytes += last - first
                elif number == _INPUTS and inner <= _SHAPE:
                    _check_name(last - first)
                _check(num_fields, typed_bytes)
        elif number <= _ID:
            _check_name(end - start)
        _check(num_fields, typed_bytes)


def _check_name(num_bytes: int) -> None:
    if num_bytes > MAX_NAME_BYTES:
        raise InvalidInference(reason=f"a name, type or shape has more than {MAX_NAME_BYTES} bytes")


def _check(num_fields: int, typed_bytes: int) -> None:
    if num_fields > MAX_FIELDS:
        raise InvalidInference(reason=f"it has more than {MAX_FIELDS} fields")
    if typed_bytes > MAX_TYPED_BYTES:
        reason = f"its values in `contents` have more than {MAX_TYPED_BYTES} bytes; send raw_input_contents"
        raise InvalidInference(reason=reason)


def _fields(view: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, first and last byte of each field between two positions."""
    while position < end:
        key, position = _varint(view, position, end)
        wire_type = key & 7
        start = position
        if wire_type == _VARINT:
            _, position = _varint(view, position, end)
        elif wire_type == _BYTES:
            length, start = _varint(view, position, end)
            position = start + length
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise InvalidInference(reason="it is not a protobuf message")
        if position > end:
            raise InvalidInference(reason="it ends within a field")
        yield key >> 3, start, position


def _varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidInference(reason="it ends within a number")
