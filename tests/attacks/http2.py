"""Hostile frames by HTTP/2 and hostile messages by gRPC, at random."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import grpc  # type: ignore[import-untyped]
from hpack import Encoder
from tritonclient.grpc import service_pb2 as pb

from tests.attacks.bodies import size
from tests.attacks.http1 import Attack, Outcome, Ports, outcome
from tests.hostile import HOST

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, _HEADERS, _PRIORITY, RST, SETTINGS, _PUSH, _PING, GOAWAY, _WINDOW, _CONTINUATION = range(10)
_END_HEADERS = 4
_SILENCE_S = 2.0
_TIMEOUT_S = 60.0
_SERVICE = "/inference.GRPCInferenceService"
_METHODS = (
    "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelConfig ModelStatistics Nothing "
    "RepositoryIndex RepositoryModelLoad RepositoryModelUnload TraceSetting LogSettings "
    "SystemSharedMemoryRegister CudaSharedMemoryRegister"
)
_PARAMETERS = "cog_triton_stream cog_triton_x sequence_id priority timeout shared_memory_region"
_MODELS = ("ensemble", "ensemble", "tensorrt_llm", "preprocessing", "x" * 9999)
_SHAPES: tuple[list[int], ...] = ([1, 1], [1, 1], [1, 1], [1, -1], [1 << 40, 1 << 40], [0], [])
_WIRE = (b"\x2a\x7f", b"\x0a\x00", b"\x23\x23")
"""Beginnings of fields that are nested, empty, or groups."""
_FIELDS = [
    *((":method", "POST"), (":scheme", "http"), (":authority", "a")),
    *(("content-type", "application/grpc"), ("te", "trailers")),
]


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(stream: int, flags: int = _END_HEADERS, method: str = "ModelInfer") -> bytes:
    fields = [(":path", f"{_SERVICE}/{method}"), *_FIELDS]
    return frame(_HEADERS, stream, Encoder().encode(fields, huffman=False), flags)


def _ids(count: int) -> range:
    return range(1, 2 * count, 2)


def _rapid_reset(chance: Random) -> bytes:
    return b"".join(call(each) + frame(RST, each, b"\0\0\0\x08") for each in _ids(size(chance, 20_000)))


def _many_calls(chance: Random) -> bytes:
    return b"".join(call(each) + frame(DATA, each, b"\0\0\0\0\5") for each in _ids(size(chance, 20_000)))


def _small_messages(chance: Random) -> bytes:
    """Send requests of a stream that are empty, or for a model without inputs."""
    message = chance.choice((b"", b"\x0a\x08ensemble", b"\x0a\x0ctensorrt_llm", b"\x0a\x01x"))
    data = struct.pack(">BI", 0, len(message)) + message
    data *= size(chance, 26_000)
    parts = (frame(DATA, 1, data[at : at + 16_000]) for at in range(0, len(data), 16_000))
    return call(1, method="ModelStreamInfer") + b"".join(parts)


def _calls_without_messages(chance: Random) -> bytes:
    return b"".join(call(each, _END_HEADERS | 1) for each in _ids(size(chance, 10_000)))


def _reset_requests(chance: Random) -> bytes:
    """Send valid requests, reset at once or all at the end."""
    message = valid_request(max_tokens=5000)
    calls = [call(each) + frame(DATA, each, message) for each in _ids(size(chance, 1000))]
    resets = [frame(RST, each, b"\0\0\0\x08") for each in _ids(len(calls) + 1)]
    return b"".join(map(bytes.__add__, calls, resets) if chance.random() < 0.5 else calls + resets)


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


def _settings(chance: Random) -> bytes:
    value = chance.choice((0, 1, 1 << 14, (1 << 31) - 1, (1 << 32) - 1))
    payload = struct.pack(">HI", chance.randint(1, 6), value) * chance.choice((1, 1, 2000))
    return frame(SETTINGS, payload=payload) * size(chance, 50_000 // (len(payload) // 6))


def _continuations(chance: Random) -> bytes:
    part = chance.choice((b"", b"\x00\x01a\x01a" * size(chance, 2000), os.urandom(100)))
    return call(1, flags=0) + frame(_CONTINUATION, 1, part) * size(chance, 20_000)


def _hpack_bomb(chance: Random) -> bytes:
    """Return a long field that enters the table, and references to it."""
    many = b"\xbe" * size(chance, 16_000)
    field = b"\x40\x01a" + b"\x7f" + b"\xa1\x1e" + b"b" * 4000
    return frame(_HEADERS, 1, field, _END_HEADERS) + b"".join(
        frame(_HEADERS, each, many, _END_HEADERS) for each in _ids(size(chance, 200))[1:]
    )


def _random_frames(chance: Random) -> bytes:
    kinds = (chance.randint(0, 12) for _ in range(size(chance, 5000)))
    return b"".join(
        frame(kind, chance.choice((0, 1, 3, 5)), os.urandom(size(chance, 400)), chance.randint(0, 255))
        for kind in kinds
    )


def _data(chance: Random) -> bytes:
    """Messages whose length is a lie, more than the window, or in frames without data."""
    length = chance.choice((0, 10, 1 << 20, (1 << 32) - 1))
    message = struct.pack(">BI", chance.randint(0, 2), length) + b"\x0a" * min(
        length, size(chance, 4_000_000)
    )
    parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    calls = (
        call(each) + b"".join(frame(DATA, each, part) for part in parts) for each in _ids(size(chance, 20))
    )
    return b"".join(calls) + frame(DATA, 1) * size(chance, 50_000)


FLOODS: dict[str, Callable[[Random], bytes]] = {
    "rapid reset": _rapid_reset,
    "many calls": _many_calls,
    "small messages": _small_messages,
    "calls without messages": _calls_without_messages,
    "reset requests": _reset_requests,
    "PING": lambda chance: frame(_PING, payload=b"12345678") * size(chance, 100_000),
    "SETTINGS": _settings,
    "WINDOW_UPDATE": lambda chance: frame(_WINDOW, 0, b"\x00\x00\x00\x01") * size(chance, 100_000),
    "PRIORITY": lambda chance: b"".join(
        frame(_PRIORITY, each, b"\0\0\0\0\1") for each in _ids(size(chance, 50_000))
    ),
    "CONTINUATION": _continuations,
    "HPACK": _hpack_bomb,
    "DATA": _data,
    "random frames": _random_frames,
}


def flood(make: Callable[[Random], bytes]) -> Attack:
    def attack(ports: Ports, chance: Random) -> Iterator[Outcome]:
        start_s = time.monotonic()
        answer, end = b"", "silent"
        with socket.create_connection((HOST, ports["grpc"]), timeout=_TIMEOUT_S) as connection:
            with suppress(OSError):
                connection.sendall(PREFACE + frame(SETTINGS) + make(chance))
            connection.settimeout(_SILENCE_S)
            try:
                while part := connection.recv(1 << 16):
                    answer = (answer + part)[-100_000:]
                end = "closed"
            except TimeoutError:
                pass
            except OSError:
                end = "reset"
        code = outcome("grpc", answer, start_s).answer.partition(" E")[2]
        yield Outcome("grpc", f"{end} E{code}" if code[:1].isdigit() else end, time.monotonic() - start_s)

    return attack


def messages(ports: Ports, chance: Random) -> Iterator[Outcome]:
    """Call methods by the library grpc with hostile messages, one or several at once."""
    method = chance.choice((*_METHODS.split(), *["ModelInfer", "ModelStreamInfer"] * 8))
    with grpc.insecure_channel(f"{HOST}:{ports['grpc']}", [("grpc.max_send_message_length", -1)]) as channel:
        for _ in range(size(chance, 8)):
            data = _message(chance)
            metadata = [("authorization", "x" * size(chance, 8000))] * chance.randint(0, 1)
            start_s = time.monotonic()
            compression = chance.choice((None, None, grpc.Compression.Gzip))
            how = {"timeout": _TIMEOUT_S, "metadata": metadata, "compression": compression}
            try:
                path = f"{_SERVICE}/{method}"
                if method == "ModelStreamInfer":
                    call = channel.stream_stream(path)(iter([data] * size(chance, 50)), **how)
                    answer = b"".join(each for each, _ in zip(call, range(20), strict=False))
                    call.cancel()
                else:
                    answer = channel.unary_unary(path)(data, **how)
                status, text = "OK", answer
            except grpc.RpcError as exc:
                status, text = exc.code().name, (exc.details() or "").encode()
            found = outcome("grpc", b"HTTP/1.1 200 " + text, start_s)
            yield found._replace(answer=found.answer.replace("200", status), text=text[:4000])


def _message(chance: Random) -> bytes:
    count = size(chance, 20_000_000)
    if chance.random() < 0.3:
        return chance.choice((os.urandom(count), *(each * (count // 2) for each in _WIRE)))
    request = pb.ModelInferRequest(model_name=chance.choice(_MODELS))
    text = chance.choice((b"a", b"a" * count))
    length = struct.pack("<I", chance.choice((len(text), (1 << 32) - 1)))
    max_tokens = struct.pack("<i", chance.choice((3, -1, 1 << 30)))
    for name, datatype, raw in ("text_input", "BYTES", length + text), ("max_tokens", "INT32", max_tokens):
        shape = chance.choice((*_SHAPES, [1] * size(chance, 100_000)))
        request.inputs.add(name=name, datatype=chance.choice((datatype, datatype, "FP16", "X")), shape=shape)
        request.raw_input_contents.append(raw)
    for _ in range(chance.randint(0, 2)):
        parameters = chance.choice((request.parameters, request.inputs[0].parameters))
        parameters[chance.choice(_PARAMETERS.split())].string_param = "x" * size(chance, 100_000)
    if chance.random() < 0.2:
        del request.raw_input_contents[:]
        request.inputs[0].contents.bytes_contents.extend([b""] * size(chance, 1_000_000))
    data: bytes = request.SerializeToString()
    return data


ATTACKS: dict[str, Attack] = {
    **{f"h2: {name}": flood(make) for name, make in FLOODS.items()},
    "gRPC messages": messages,
}
