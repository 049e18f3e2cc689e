"""The front before a real Triton: clients that leave, hostile traffic."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import httpx
import pytest
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, PingFrame, SettingsFrame

from runner.triton_server.grpc_wire import SERVICE
from tests.attacks.http2 import DATA, GOAWAY, PREFACE, RST, SETTINGS, call, frame, valid_request
from tests.hostile import Watch, chunked, flood, most_slow_s, request, resident_mib, send, status_of
from tests.runner.servers import ENSEMBLE, HOST, SLOT, TritonUnderTest, events, wait_until
from tests.runner.triton_server.front.running import ASKED, QUESTION, front_pid, inference

pytestmark = pytest.mark.servers

LONG = {"text_input": QUESTION, "max_tokens": 4000, "stream": True}
MOST_GROWN_MIB = 64 + 8
DEEP = b'{"text_input":' + b"[" * 40_000 + b"]" * 40_000 + b"}"


# Clients that leave


def _leave_http(path: str, body: dict[str, Any]) -> Callable[[TritonUnderTest, Any], Callable[[], None]]:
    def begin(triton: TritonUnderTest, _: Any) -> Callable[[], None]:
        connection = socket.create_connection((HOST, triton.http_port))
        connection.sendall(request(path, json.dumps(body).encode()))
        return connection.close

    return begin


def _leave_unary(_: TritonUnderTest, stub: Any) -> Callable[[], object]:
    call: Callable[[], object] = stub.ModelInfer.future(inference(max_tokens=4000)).cancel
    return call


def _leave_stream(_: TritonUnderTest, stub: Any) -> Callable[[], object]:
    stream = stub.ModelStreamInfer(iter([inference(max_tokens=4000, is_streaming=True)] * 3))
    next(stream)
    call: Callable[[], object] = stream.cancel
    return call


def _deadline(_: TritonUnderTest, stub: Any) -> Callable[[], object]:
    call = stub.ModelInfer.future(inference(max_tokens=4000), timeout=1)
    return lambda: call.exception()


LEAVING: dict[str, Callable[[TritonUnderTest, Any], Callable[[], object]]] = {
    "generate": _leave_http(f"{ENSEMBLE}/generate", LONG | {"stream": False}),
    "generate_stream": _leave_http(f"{ENSEMBLE}/generate_stream", LONG),
    "generate of the slot": _leave_http(
        f"{SLOT}/generate", {"input_ids": [1, 2], "request_output_len": 4000}
    ),
    "ModelInfer": _leave_unary,
    "ModelStreamInfer": _leave_stream,
    "deadline": _deadline,
}


@pytest.mark.parametrize("begin", LEAVING.values(), ids=LEAVING)
def test_a_client_that_leaves_frees_the_engine(
    triton: TritonUnderTest, stub: Any, begin: Callable[[TritonUnderTest, Any], Callable[[], object]]
) -> None:
    wait_until(lambda: triton.counters.is_settled)
    leave = begin(triton, stub)
    wait_until(lambda: triton.counters.running >= 1)
    before = triton.counters.cancelled
    leave()
    wait_until(lambda: triton.counters.running == 0, 15)
    assert triton.counters.cancelled > before


# Hostile traffic

SMALL_CALLS = [
    "/grpc.health.v1.Health/Check",
    *(f"{SERVICE}/{name}" for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata")),
    *(f"{SERVICE}/{name}" for name in ("ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer")),
]


@pytest.mark.parametrize("message", [b"*\x7f" * 200, b"\n\x02\xff\xff", b"\x23" * 60_000, b"\x0a"])
def test_a_message_that_can_not_be_parsed_ends_no_stream_of_another_client(
    triton: TritonUnderTest, message: bytes
) -> None:
    """Triton would end such a call several times, which no HTTP/2 library accepts."""
    with PacedStream(triton), grpc.insecure_channel(f"{HOST}:{triton.grpc_port}") as channel:
        for path in SMALL_CALLS:
            try:
                channel.unary_unary(path)(message)
            except grpc.RpcError as exc:
                assert "E1107" in str(exc)


def _frames(frames: list[Frame]) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(each.serialize() for each in frames)


def _calls(*frames: bytes) -> bytes:
    """The server closes the connection at the end."""
    return PREFACE + frame(SETTINGS) + b"".join(frames) + frame(GOAWAY, 0, b"\0" * 8)


def _reset_request(stream: int) -> bytes:
    return call(stream) + frame(DATA, stream, valid_request(4000)) + frame(RST, stream, b"\0\0\0\x08")


INFER = "/v2/models/preprocessing/infer"
ATTACKS: dict[str, tuple[str, int, Callable[[], bytes], set[int]]] = {
    "nested JSON": ("http", 16, lambda: request(f"{ENSEMBLE}/generate", DEEP), {400}),
    "nested JSON, infer": ("http", 16, lambda: request(INFER, DEEP), {400}),
    "tiny chunks": ("http", 2, lambda: chunked(f"{ENSEMBLE}/generate", [b"a"] * 550_000), {400}),
    "tiny chunks to no model": ("http", 8, lambda: chunked("/x", [b"a"] * 50_000), {404}),
    "many values": ("http", 8, lambda: request(INFER, b'{"x":[' + b"1," * 520_000 + b"1]}"), {400}),
    "many objects": ("http", 8, lambda: request(INFER, b'{"x":[' + b'{"a":0},' * 100_000 + b"1]}"), {400}),
    "many texts": (
        "http",
        8,
        lambda: request(f"{ENSEMBLE}/generate", json.dumps(ASKED | {"stop_words": ["a"] * 500_000}).encode()),
        {400},
    ),
    "large bodies": ("http", 16, lambda: request(INFER, b" " * 4_000_000), {400, 503}),
    "headers": ("http", 32, lambda: b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 500_000, {431}),
    "a long path": ("http", 32, lambda: b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n", {431}),
    "pipelined": ("http", 32, lambda: request("/v2", b"", method="GET") * 10_000, {200, 400}),
    "metadata": ("http", 64, lambda: request("/v2/models/stats", b"", method="GET"), {200}),
    "pings": ("grpc", 16, lambda: _frames([PingFrame(0, b"12345678")] * 50_000), {0}),
    "settings": ("grpc", 16, lambda: _frames([SettingsFrame(0, settings={4: 9})] * 50_000), {0}),
    "empty messages": (
        "grpc",
        8,
        lambda: _calls(call(1, method="ModelStreamInfer"), *[frame(DATA, 1, b"\0\0\0\0\0" * 3200)] * 8),
        {0},
    ),
    "requests that are reset": ("grpc", 8, lambda: _calls(*map(_reset_request, range(1, 800, 2))), {0}),
    "headers without end": (
        "grpc",
        32,
        lambda: _frames([HeadersFrame(1, data=b""), *[ContinuationFrame(1, data=b"a" * 16_000)] * 60]),
        {0},
    ),
}


@pytest.mark.parametrize(("kind", "connections", "make", "statuses"), ATTACKS.values(), ids=ATTACKS)
def test_others_are_served_beside_hostile_traffic_and_triton_gets_none_of_it(
    triton: TritonUnderTest, kind: str, connections: int, make: Callable[[], bytes], statuses: set[int]
) -> None:
    data, port = make(), triton.http_port if kind == "http" else triton.grpc_port
    pid = triton.service.stack.triton.pid
    assert pid is not None
    its_mib = resident_mib(pid)
    with PacedStream(triton) as stream, Watch(front_pid(triton), f"{triton.url}/v2/health/live") as watch:
        answers = flood(lambda _: send(port, data), connections)
    assert {status_of(each) for each in answers} <= statuses
    assert watch.grown_mib < MOST_GROWN_MIB
    assert watch.slowest_s < most_slow_s()
    assert stream.longest_gap_s < most_slow_s()
    assert triton.service.stack.triton.pid == pid
    assert resident_mib(pid) - its_mib < MOST_GROWN_MIB


class PacedStream:
    """A stream beside the traffic; leaving checks that its text is exact."""

    def __init__(self, triton: TritonUnderTest) -> None:
        self._triton = triton
        self._has_begun, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._text = ""
        self.longest_gap_s = 0.0

    def __enter__(self) -> PacedStream:
        self._thread.start()
        assert self._has_begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        assert self._text
        assert self._triton.model.expected_text(QUESTION, 4000).startswith(self._text)

    def _read(self) -> None:
        url = f"{self._triton.url}{ENSEMBLE}/generate_stream"
        with httpx.stream(
            "POST", url, json=LONG | {"exclude_input_in_output": True}, timeout=300
        ) as response:
            last_s = time.perf_counter()
            for line in response.iter_lines():
                for each in events(line):
                    self._has_begun.set()
                    now_s = time.perf_counter()
                    self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
                    last_s = now_s
                    self._text += each["text_output"]
                if self._ends.is_set():
                    return


def test_half_closed_and_slow_clients_are_served(triton: TritonUnderTest) -> None:
    with socket.create_connection((HOST, triton.http_port), timeout=300) as connection:
        for each in request(f"{ENSEMBLE}/generate", json.dumps(ASKED).encode()):
            connection.sendall(bytes([each]))
        assert status_of(connection.recv(1 << 16)) == 200
    for path in (
        "/v2/../v2/repository/index",
        "/v2%2frepository/index",
        "http://x/v2/repository/index",
        "//v2",
    ):
        assert status_of(send(triton.http_port, request(path, b"{}"))) == 404
    with suppress(OSError), socket.create_connection((HOST, triton.http_port), timeout=300) as connection:
        connection.sendall(request(f"{ENSEMBLE}/generate", b"{}")[:-1])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1 << 16) == b""


def test_several_responses_to_generate_are_refused(triton: TritonUnderTest) -> None:
    answer = triton.post(f"{ENSEMBLE}/generate", ASKED | {"stream": True})
    assert (answer.status_code, answer.json()["error"][:5]) == (400, "E1107")
