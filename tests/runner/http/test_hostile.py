"""Hostile traffic at all ports of a runner: coded answers, bounded memory, and quick answers to others."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from runner.triton_server.grpc_wire import SERVICE, prefixed
from tests.hostile import (
    HOST,
    Watch,
    chunked,
    flood,
    most_slow_s,
    received,
    request,
    resident_mib,
    send,
    status_of,
)
from tests.runner.api.alone import APIAlone
from tests.runner.api.apis import API
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import ENSEMBLE, Counters, wait_until
from tests.runner.triton_server.front.running import front_pid, inference

pytestmark = pytest.mark.servers

CHAT, TEXT, INFER = "/v1/chat/completions", "/v1/completions", "/v2/models/preprocessing/infer"
PROMPT = "Earth and water"
MIB = 1 << 20
MOST_GROWN_MIB = 64 + 8


@dataclass(frozen=True)
class Port:
    """A port of the runner: who listens, how it is watched, and a stream of text from it."""

    number: int
    pid: int
    url: str
    health: str
    path: str
    """Path that takes a JSON body."""
    short: bytes
    """The body of a short text."""
    stream_path: str
    stream_body: dict[str, Any]
    model: PacedModel

    def text_of(self, event: dict[str, Any]) -> str:
        return str(event["text_output"] if "text_output" in event else event["choices"][0]["text"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    return make_paced_model(tmp_path_factory.mktemp("model") / "paced", 50)


@pytest.fixture(scope="module")
def runner(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    api = API(model, tmp_path_factory.mktemp("runner"), OPENAI_PROCESSES="1")
    yield api
    api.close()


@pytest.fixture(scope="module")
def ports(runner: API, model: PacedModel) -> dict[str, Port]:
    (process,) = runner.triton.service.openai.processes
    assert process.pid is not None
    long = {"prompt": PROMPT, "max_tokens": 4000, "stream": True}
    asked = {"text_input": PROMPT, "max_tokens": 4000, "stream": True, "exclude_input_in_output": True}
    triton = runner.triton
    front = front_pid(triton)
    stream_path = f"{ENSEMBLE}/generate_stream"
    api_short = b'{"prompt": "a", "max_tokens": 1}'
    short = b'{"text_input": "a", "max_tokens": 1}'
    live, path = "/v2/health/live", f"{ENSEMBLE}/generate"
    return {
        "api": Port(runner.port, process.pid, runner.url, "/health", TEXT, api_short, TEXT, long, model),
        "triton": Port(triton.http_port, front, triton.url, live, path, short, stream_path, asked, model),
        "grpc": Port(triton.grpc_port, front, triton.url, live, path, short, stream_path, asked, model),
    }


@pytest.fixture(params=["api", "triton"])
def port(request: pytest.FixtureRequest, ports: dict[str, Port]) -> Port:
    return ports[request.param]


@pytest.fixture(scope="module")
def strict(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIAlone]:
    server = APIAlone(
        model,
        tmp_path_factory.mktemp("strict"),
        API_KEYS="the-key",
        OPENAI_MAX_CONNECTIONS="8",
        OPENAI_MAX_HEADER_BYTES="2000",
        OPENAI_RECEIVE_TIMEOUT="1",
        OPENAI_MAX_BODY_BYTES="100000",
    )
    yield server
    server.close()


def of(fields: dict[str, Any], path: str = TEXT) -> bytes:
    return request(path, json.dumps(fields).encode())


def code_of(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    if isinstance(error, str):
        return error.partition(" ")[0]
    assert re.search(rb"\r\nx-request-id: \S+\r\n", head + b"\r\n")
    return str(error["code"])


def _frames(frames: Iterable[Frame]) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(each.serialize() for each in frames)


def _call(stream: int, method: str, *rest: Frame) -> list[Frame]:
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", f"{SERVICE}/{method}")]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    return [HeadersFrame(stream, Encoder().encode(fields, huffman=False), flags=["END_HEADERS"]), *rest]


def _calls(*frames: Frame) -> bytes:
    """Return what makes the server answer and close the connection at the end."""
    return _frames([SettingsFrame(0), *frames, GoAwayFrame(0)])


def _reset_requests() -> bytes:
    message = prefixed(inference(max_tokens=4000, is_streaming=True).SerializeToString())
    streams = [
        _call(each, "ModelInfer", DataFrame(each, message), RstStreamFrame(each, 8))
        for each in range(1, 800, 2)
    ]
    return _calls(*itertools.chain(*streams))


def _get(path: str, *headers: str) -> bytes:
    return request(path, b"", *headers, method="GET")


DEEP = b'{"text_input":' + b"[" * 40_000 + b"]" * 40_000 + b"}"
ARGUMENTS = {"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 6_000_000}}]}
WIDE = b'{"prompt":"a","max_tokens":1,"user":"\xf0\x9f\x98\x80' + b"a" * 8_000_000 + b'"}'
TEXTS = json.dumps({"text_input": "a", "max_tokens": 5, "stop_words": ["a"] * 500_000}).encode()
Attack = tuple[str, int, Callable[[str], bytes], set[int]]
"""The ports, the number of connections, what each sends to a path, and statuses that it may get."""
ATTACKS: dict[str, Attack] = {
    "a long header": ("api triton", 32, lambda _: b"GET /health HTTP/1.1\r\nX: " + b"a" * 8 * MIB, {0, 431}),
    "tiny headers": ("api triton", 200, lambda _: b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 15_000, {0, 431}),
    "small chunks": ("api triton", 4, lambda path: chunked(path, [b"a"] * 300_000), {400, 429}),
    "tiny chunks to no model": ("triton", 8, lambda _: chunked("/x", [b"a"] * 50_000), {404}),
    "chunk extensions": (
        *("api triton", 4),
        lambda path: chunked(path, [])[:-5] + b"5;" + b"a" * 40 * MIB,
        {0, 413, 429, 503},
    ),
    "trailers": (
        *("api triton", 4),
        lambda path: chunked(path, [b"{}"])[:-2] + (b"X: " + b"a" * 60 + b"\r\n") * 300_000,
        {0, 413, 429, 503},
    ),
    "pipelined requests": ("api triton", 32, lambda _: _get("/health") * 10_000, {0, 200, 400}),
    "no HTTP": ("api triton", 64, lambda _: b"\x16\x03\x01" + b"\0" * 100_000, {0, 400}),
    "metrics": ("api", 64, lambda _: _get("/metrics"), {200}),
    "readiness": ("api", 64, lambda _: _get("/ready"), {200}),
    "statistics": ("triton", 64, lambda _: _get("/v2/models/stats"), {200}),
    "a long path": ("api", 64, lambda _: _get("/" + "a" * 60_000), {404}),
    "many prompts": ("api", 8, lambda _: of({"prompt": ["a"] * 1_300_000}), {400}),
    "nearly too many prompts": ("api", 8, lambda _: of({"prompt": ["a"] * 290_000}), {400, 429}),
    "many empty messages": (
        *("api", 8),
        lambda _: request(CHAT, b'{"messages":[' + b"{}," * 2_000_000 + b"{}]}"),
        {400},
    ),
    "arguments of a tool": ("api", 16, lambda _: of({"messages": [ARGUMENTS]}, CHAT), {400, 429}),
    "wide characters": ("api", 16, lambda path: request(path, WIDE), {200, 429}),
    "nested JSON": ("triton", 16, lambda path: request(path, DEEP), {400}),
    "many texts": ("triton", 8, lambda path: request(path, TEXTS), {400}),
    "large bodies": ("triton", 16, lambda _: request(INFER, b" " * 4_000_000), {400, 429, 503}),
    "pings": ("grpc", 16, lambda _: _frames([PingFrame(0, b"12345678")] * 50_000), {0}),
    "settings": ("grpc", 16, lambda _: _frames([SettingsFrame(0, settings={4: 9})] * 50_000), {0}),
    "empty messages": (
        *("grpc", 8),
        lambda _: _calls(*_call(1, "ModelStreamInfer", *[DataFrame(1, prefixed(b"") * 3200)] * 8)),
        {0},
    ),
    "requests that are reset": ("grpc", 8, lambda _: _reset_requests(), {0}),
    "headers without end": (
        *("grpc", 32),
        lambda _: _frames([HeadersFrame(1, data=b""), *[ContinuationFrame(1, data=b"a" * 16_000)] * 60]),
        {0},
    ),
}


@pytest.mark.parametrize(
    ("at", "connections", "make", "statuses"),
    [
        pytest.param(at, *attack, id=f"{at}: {name}")
        for name, (ports, *attack) in ATTACKS.items()
        for at in ports.split()
    ],
)
def test_others_are_served_meanwhile_and_memory_is_bounded(
    runner: API,
    ports: dict[str, Port],
    at: str,
    connections: int,
    make: Callable[[str], bytes],
    statuses: set[int],
) -> None:
    port = ports[at]
    data = make(port.path)
    triton_pid = runner.triton.service.stack.triton.pid
    assert triton_pid is not None
    triton_mib = resident_mib(triton_pid)
    with Streams(port, 3) as streams, Watch(port.pid, f"{port.url}{port.health}") as watch:
        answers = flood(lambda _: send(port.number, data), connections)
    assert {status_of(each) for each in answers} <= statuses
    assert watch.grown_mib < MOST_GROWN_MIB
    assert watch.slowest_s < most_slow_s()
    assert streams.longest_gap_s < most_slow_s()
    assert runner.triton.service.stack.triton.pid == triton_pid
    assert resident_mib(triton_pid) - triton_mib < MOST_GROWN_MIB


SMALL_CALLS = [
    "/grpc.health.v1.Health/Check",
    *(f"{SERVICE}/{name}" for name in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata")),
    *(f"{SERVICE}/{name}" for name in ("ModelMetadata", "ModelConfig", "ModelStatistics", "ModelInfer")),
]


@pytest.mark.parametrize("message", [b"*\x7f" * 200, b"\n\x02\xff\xff", b"\x23" * 60_000, b"\x0a"])
def test_a_message_that_can_not_be_parsed_ends_no_stream_of_another_client(
    ports: dict[str, Port], message: bytes
) -> None:
    """Triton would end such a call several times, which no HTTP/2 library accepts."""
    with Streams(ports["grpc"], 1), grpc.insecure_channel(f"{HOST}:{ports['grpc'].number}") as channel:
        for path in SMALL_CALLS:
            try:
                channel.unary_unary(path)(message)
            except grpc.RpcError as exc:
                assert "E1107" in str(exc)


class Streams:
    """Paced streams beside the traffic; leaving checks that their texts are exact."""

    def __init__(self, port: Port, count: int) -> None:
        self._port = port
        self._expected = port.model.expected_text(PROMPT, 4000)
        self._have_begun = threading.Barrier(count + 1)
        self._ends = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self._count = count
        self.longest_gap_s = 0.0

    def __enter__(self) -> Streams:
        self._streams = [self._pool.submit(self._read) for _ in range(self._count)]
        self._have_begun.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for each in self._streams:
            text = each.result()
            assert text
            assert self._expected.startswith(text)
        self._pool.shutdown()

    def _read(self) -> str:
        port, text, last_s = self._port, "", None
        url = f"{port.url}{port.stream_path}"
        with httpx.stream("POST", url, json=port.stream_body, timeout=300) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if not line:
                    continue
                now_s = time.perf_counter()
                if last_s is None:
                    self._have_begun.wait(300)
                self.longest_gap_s = max(self.longest_gap_s, now_s - (last_s or now_s))
                last_s = now_s
                text += port.text_of(json.loads(line.removeprefix("data: ")))
                if self._ends.is_set():
                    break
        return text


@pytest.mark.parametrize(
    ("make", "status", "codes"),
    [
        (lambda path: b"GARBAGE\r\n\r\n", 400, "E1610"),
        (
            lambda path: request(path, b"", "Expect: 100-continue").replace(b"h: 0", b"h: 99999999999"),
            413,
            "E1606 E1110",
        ),
        (lambda path: b"\r\n" * 100_000, 431, "E1611 E1110"),
    ],
)
def test_what_is_not_well_formed_gets_a_code_of_its_port(
    port: Port, make: Callable[[str], bytes], status: int, codes: str
) -> None:
    answer = send(port.number, make(port.path))
    assert status_of(answer) == status
    assert code_of(answer) in codes.split()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "E1609"),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 421, "E1609"),
        (b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1.evil.example:9000\r\n\r\n", 421, "E1609"),
        (_get("/health", *["a:"] * 101), 431, "E1611"),
        (request(TEXT, b"{}").replace(b"application/json", b"text/plain"), 415, "E1608"),
        (request(TEXT, b"{}", "Connection: Upgrade", "Upgrade: websocket"), 400, "E1005"),
    ],
)
def test_what_the_api_does_not_answer_gets_a_coded_answer(
    ports: dict[str, Port], data: bytes, status: int, code: str
) -> None:
    answer = send(ports["api"].number, data)
    assert (status_of(answer), code_of(answer)) == (status, code)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "127.9.9.9", "[::1]:9000"])
def test_loopback_names_are_served(ports: dict[str, Port], host: str) -> None:
    url = f"{ports['api'].url}/v1/models"
    assert httpx.get(url, headers={"Host": host}, timeout=300).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_health_and_metrics_are_answered_for_any_host(ports: dict[str, Port], path: str) -> None:
    url = f"{ports['api'].url}{path}"
    for headers in ({"Host": "10.1.2.3:9000"}, {"Host": "pod.example"}):
        assert httpx.get(url, headers=headers, timeout=300).status_code == 200


def test_the_server_as_a_whole_tells_its_methods(port: Port) -> None:
    answer = send(port.number, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert status_of(answer) in (200, 204)
    assert b"\r\nallow: GET, HEAD, POST\r\n" in answer


def test_a_key_is_checked_before_the_body_is_read(strict: APIAlone) -> None:
    head = request(TEXT, b"", "Expect: 100-continue").replace(b"h: 0", b"h: 90000")
    with socket.create_connection((HOST, strict.port)) as connection:
        connection.sendall(head)
        assert status_of(received(connection)) == 401
        assert connection.recv(1) == b""  # Closed, as the body may follow or not.


def test_the_bounds_of_settings_hold(strict: APIAlone) -> None:
    long_head = request(TEXT, b"{}", f"X: {'a' * 2000}")
    assert code_of(send(strict.port, long_head)) == "E1611"
    start_s = time.monotonic()
    slow = send(strict.port, request(TEXT, b"", "Authorization: Bearer the-key").replace(b"h: 0", b"h: 9"))
    assert (status_of(slow), code_of(slow)) == (408, "E1612")
    assert code_of(send(strict.port, b"GET /health HTTP/1.1\r\nHost: lo")) == "E1612"
    assert time.monotonic() - start_s > 1


def test_idle_and_slow_connections_make_room_for_others(strict: APIAlone) -> None:
    idle = [socket.create_connection((HOST, strict.port)) for _ in range(20)]
    for each in idle:
        each.sendall(b"GET / HTTP/1.1\r\nX: ")
    try:
        for _ in range(3):
            assert httpx.get(f"{strict.url}/health", timeout=300).status_code == 200
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize("is_stream", [False, True])
def test_pipelined_requests_are_cancelled_when_their_client_disconnects(
    ports: dict[str, Port], is_stream: bool
) -> None:
    port = ports["api"]

    def is_active() -> bool:
        return Counters(port.number)['active_requests{api="openai"}'] > 0

    with socket.create_connection((HOST, port.number)) as connection:
        connection.sendall(of({"prompt": "a b c", "max_tokens": 4000, "stream": is_stream}) * 2)
        wait_until(is_active)
    wait_until(lambda: not is_active())  # The text takes 80 s.


@pytest.mark.parametrize(
    "data", [b"", request(TEXT, b"").replace(b"h: 0", b"h: 9999999")], ids=["idle", "refused"]
)
def test_a_burst_of_connections_does_not_take_all_files(strict: APIAlone, data: bytes) -> None:
    before = len(strict.log)
    with ExitStack() as connections:
        for _ in range(1500):
            connection = connections.enter_context(socket.create_connection((HOST, strict.port), timeout=300))
            connection.sendall(data)
        assert httpx.get(f"{strict.url}/health", timeout=300).status_code == 200
    # NOTE: on a busy machine it may be late to answer, which is told, and so is that it answers again.
    late = {f"the OpenAI-compatible API {each}" for each in ("does not answer", "answers again")}
    assert set(strict.log[before:]) <= late


def test_logs_do_not_grow_with_refusals(runner: API, port: Port) -> None:
    before = len(runner.triton.log)
    flood(lambda _: send(port.number, b"GARBAGE\r\n\r\n"), 50)
    flood(lambda _: send(port.number, request(port.path, b"[" * 1000)), 50)
    assert len(runner.triton.log) == before
