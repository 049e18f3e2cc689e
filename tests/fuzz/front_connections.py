"""Bytes of hostile clients to the front of Triton, by HTTP/1.1 and by HTTP/2, while Triton answers.

Nothing but coded errors, also for Triton's connection, by which other clients are answered; and nothing is
left of a client that has disconnected.
"""

import asyncio
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from hpack import Encoder

from errors.triton import TritonUnavailable
from runner.http.connection import HTTPConnection
from runner.http.connections import Connections, Limits
from runner.settings.api_keys import APIKeys
from runner.settings.ports import TritonPorts
from runner.supervision.health import HTTPAnswer
from runner.triton_server.front.grpc.server import GRPCConnection, GRPCServer
from runner.triton_server.front.http.answers import word_refusal
from runner.triton_server.front.http.application import Application
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.triton_http import TritonHTTP
from tests.fuzz.bounds import bounded
from tests.fuzz.choices import Choices
from tests.fuzz.front_requests import generate_document, infer_body, protobuf
from tests.fuzz.triton_standin import StandInTriton, stand_in
from tests.runner.triton_server.transport import Transport

_MAX_BODY_BYTES = 1 << 16
_INTERNAL_ERROR = b"E2602"
_TARGETS = (
    *(b"/v2/models/tensorrt_llm/generate_stream", b"/v2/models/ensemble/generate"),
    *(b"/v2/models/ensemble/versions/1/infer", b"/v2/models/x/generate", b"/health", b"/v2/health/ready"),
    *(b"/v2/repository/index", b"/v2/logging/%zz", b"/metrics", b"*", b"http://x/v2", b"/" + b"a" * 5000),
)
_METHODS = (b"POST", b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"PRI", b"CONNECT", b"OPTIONS", b"\xff")
_LINES = (
    *(b"Connection: close", b"Connection: Upgrade\r\nUpgrade: h2c", b"Expect: 100-continue"),
    *(b"Content-Encoding: gzip", b"Inference-Header-Content-Length: 20", b"Content-Length: " + b"9" * 30),
    *(b"Inference-Header-Content-Length: -1", b"Transfer-Encoding: chunked", b"x: " + b"y" * 9000),
    *(b"traceparent: 00-\xff\r\n b", b": x", b"Content-Length: 5", b"a: b\0", b"Authorization: Bearer x"),
)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHOD_PATHS = (
    *(b"/inference.GRPCInferenceService/" + name for name in (b"ModelStreamInfer", b"ModelInfer")),
    *(
        b"/inference.GRPCInferenceService/" + name
        for name in (b"ServerReady", b"ModelMetadata", b"LogSettings")
    ),
    *(b"/grpc.health.v1.Health/Check", b"/x", b"", b"\xff" * 300),
)
_FIELDS = (
    *((b"content-length", b"5"), (b"content-length", b"9" * 5000), (b"X", b"y"), (b"te", b"gzip")),
    *((b"x", b"y" * 5000), (b":path", b"/"), (b"grpc-timeout", b"\xff"), (b"connection", b"close")),
)
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _END_HEADERS = 1, 4


class UnreachableTriton(TritonHTTP):
    """A stand-in: Triton's HTTP server does not answer."""

    def __init__(self) -> None:
        self._ports = TritonPorts(http=1, grpc=2, metrics=3)
        self._turns = asyncio.Semaphore(1)
        self._reading = asyncio.Lock()
        self._next_metrics = None

    async def _ask(self, method: str, url: str, body: bytes = b"") -> HTTPAnswer:
        raise TritonUnavailable(reason="it is a stand-in")


@lru_cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def front_http(data: bytes) -> None:
    _loop().run_until_complete(_http(Choices(data)))


def front_grpc(data: bytes) -> None:
    _loop().run_until_complete(_grpc(Choices(data)))


async def _http(choices: Choices) -> None:
    triton, inferences = stand_in()
    is_managed, keys = choices.flag(), APIKeys(choices.of(((), ("key",))))
    connection = _http_connection(inferences, keys, is_managed=is_managed)
    connections = connection.registry
    sent = b"".join(_http_request(choices) for _ in range(1 + choices.below(3)))
    written = await _converse(connection, _cut(choices, sent), triton, choices)
    assert not written or written.startswith(b"HTTP/1.1 "), written[:100]
    assert not connections.tasks
    assert not list(connections)
    triton.disconnect()  # What clients have left counts until Triton ends it.
    assert (inferences.running, inferences.budget.held_bytes) == (0, 0)


def _http_connection(inferences: Inferences, keys: APIKeys, *, is_managed: bool) -> HTTPConnection:
    inferences.is_managed = is_managed
    application = Application(inferences, UnreachableTriton(), keys, lambda: True, _MAX_BODY_BYTES)
    limits = Limits(
        max_connections=3,
        max_head_bytes=1 << 14,
        max_body_bytes=_MAX_BODY_BYTES,
        receive_timeout_s=60,
        idle_timeout_s=60,
    )
    return HTTPConnection(application, Connections(limits), word_refusal)


async def _grpc(choices: Choices) -> None:
    triton, inferences = stand_in()
    is_ready, inferences.is_managed = choices.below(4) != 1, choices.flag()
    server = GRPCServer(inferences, UnreachableTriton(), APIKeys(()), lambda: is_ready, _MAX_BODY_BYTES)
    await _converse(server.connection(), list(_reads(choices)), triton, choices)
    assert not list(server.connections)
    triton.disconnect()
    assert (inferences.running, len(server.open), inferences.budget.held_bytes) == (0, 0, 0)


async def _converse(
    connection: HTTPConnection | GRPCConnection,
    reads: Sequence[bytes],
    triton: StandInTriton,
    choices: Choices,
) -> bytes:
    """Give the connection what its client sends, read by read; returns what the client gets."""
    failures: list[dict[str, Any]] = []
    _loop().set_exception_handler(lambda loop, context: failures.append(context))
    is_read = choices.below(8) != 1
    triton.is_up, triton.is_reachable = choices.below(4) != 1, choices.below(8) != 1
    with bounded(sum(map(len, reads))):
        transport = Transport(connection, is_read=is_read)
        for read in reads:
            rest = read
            for _ in range(20):
                if not rest or transport.is_closing():
                    break
                if transport.is_reading():
                    rest = transport.feed_once(rest)
                await asyncio.sleep(0)
                triton.answer(choices)
                await asyncio.sleep(0)
        if choices.below(8) == 1:
            triton.disconnect()
        if not transport.is_lost:
            transport.lose()
        for _ in range(4):
            await asyncio.sleep(0)
    assert not failures, failures
    assert _INTERNAL_ERROR not in transport.sent
    return bytes(transport.sent)


def _cut(choices: Choices, sent: bytes) -> list[bytes]:
    places = sorted(choices.below(min(len(sent), 1 << 16) + 1) for _ in range(choices.below(4)))
    return [sent[start:end] for start, end in zip([0, *places], [*places, len(sent)], strict=True)]


def _http_request(choices: Choices) -> bytes:
    if choices.below(8) == 1:
        return choices.bytes(200)
    json_length = None
    if choices.flag():
        target, body = choices.of(_TARGETS), generate_document(choices)
    else:
        target = _TARGETS[2]
        body, json_length = infer_body(choices)
    lines = [choices.of(_METHODS) + b" " + target + b" HTTP/1." + choices.of((b"1", b"1", b"1", b"0", b"9"))]
    if json_length is not None:
        lines.append(b"Inference-Header-Content-Length: %d" % json_length)
    lines += choices.some(_LINES, 2)
    if choices.flag():
        lines.append(b"Transfer-Encoding: chunked")
        pieces = [body[start : start + 50] for start in range(0, len(body), 50)][:100]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        lines.append(b"Content-Length: %d" % (len(body) + choices.of((0, 0, 0, 0, 1, -1))))
    return choices.damaged(b"\r\n".join([*lines, b"", body]))


def _reads(choices: Choices) -> Iterator[bytes]:
    """Yield what a client of gRPC sends: frames, some together."""
    read = _PREFACE if choices.below(16) != 1 else choices.bytes(30)
    read += _frame(_SETTINGS, 0, 0, choices.of((b"", b"", b"", b"\0\4\0\0\0\0", b"\0\4\xff\xff\xff\xff")))
    encoder = Encoder()
    next_id = 1
    for _ in range(1 + choices.below(6)):
        kind = choices.below(4)
        if kind < 2:
            read += b"".join(_call(choices, encoder, next_id))
            next_id += 2
        elif kind == 2:
            read += _control(choices)
        else:
            stream_id = choices.of((1, 1, 3, 0, 2, (1 << 31) - 1))
            read += _frame(choices.below(12), choices.byte(), stream_id, choices.bytes(40))
        if choices.flag():
            yield read
            read = b""
    yield read


def _call(choices: Choices, encoder: Encoder, stream_id: int) -> Iterator[bytes]:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x")]
    fields += [(b":path", choices.of(_METHOD_PATHS)), (b"te", b"trailers")]
    fields += choices.some(_FIELDS, 2) if choices.below(4) == 1 else []
    head = encoder.encode(fields)
    if choices.below(8) == 1:
        yield _frame(_HEADERS, 0, stream_id, head[:10]) + _frame(_CONTINUATION, 4, stream_id, head[10:])
    else:
        yield _frame(_HEADERS, _END_HEADERS | (choices.below(8) == 1), stream_id, head)
    for _ in range(choices.below(3)):
        message = protobuf(choices)
        length = len(message) if choices.below(8) != 1 else choices.of((0, 1, 1 << 17, (1 << 32) - 1))
        content = struct.pack(">BI", choices.below(16) == 1, length) + message
        for start in range(0, min(len(content), 1 << 16), 1 << 14):
            yield _frame(_DATA, 0, stream_id, content[start : start + (1 << 14)])
    if choices.flag():
        yield _frame(_DATA, _END_STREAM, stream_id, b"")
    if choices.below(4) == 1:
        yield _frame(_RESET, 0, stream_id, b"\0\0\0\x08")


def _control(choices: Choices) -> bytes:
    stream_id = choices.of((0, 0, 1, 3))
    return choices.of(
        (
            _frame(_WINDOW, 0, stream_id, b"\0\0\0\1"),
            _frame(_WINDOW, 0, stream_id, b"\x7f\xff\xff\xff"),
            _frame(_SETTINGS, 0, 0, b"\0\4\0\1\0\0\0\5\0\0\x40\0"),
            _frame(_SETTINGS, 0, 0, b"\0\1\xff\xff\xff\xff\0\3\0\0\0\0"),
            _frame(_GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0"),
            _frame(_PING, 0, 0, b"12345678") * 3,
            _frame(_RESET, 0, stream_id, b"\0\0\0\0"),
            _frame(_HEADERS, 5, stream_id, b"\x82\x84\xbf\xff"),
        )
    )


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 255, kind, flags, stream_id) + payload
