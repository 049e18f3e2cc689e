"""Frames of HTTP/2, for clients that send them in a hostile order."""

from __future__ import annotations

import struct

from hpack import Encoder
from tritonclient.grpc import service_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, _HEADERS, _, RST, SETTINGS, _, _, GOAWAY = range(8)
_END_HEADERS = 4
_SERVICE = "/inference.GRPCInferenceService"
_FIELDS = [
    *((":method", "POST"), (":scheme", "http"), (":authority", "a")),
    *(("content-type", "application/grpc"), ("te", "trailers")),
]


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(stream: int, flags: int = _END_HEADERS, method: str = "ModelInfer") -> bytes:
    fields = [(":path", f"{_SERVICE}/{method}"), *_FIELDS]
    return frame(_HEADERS, stream, Encoder().encode(fields, huffman=False), flags)


def valid_request(max_tokens: int) -> bytes:
    request = pb.ModelInferRequest(model_name="ensemble")
    for name, datatype, raw in (
        ("text_input", "BYTES", struct.pack("<I", 5) + b"a b c"),
        ("max_tokens", "INT32", struct.pack("<i", max_tokens)),
        ("stream", "BOOL", b"\1"),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(raw)
    data = request.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + bytes(data)
