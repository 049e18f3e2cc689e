"""The front before a real Triton: the same answers, types, clients that leave, hostile traffic."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame, PingFrame, SettingsFrame
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from runner.engines.protocol.front import ONLY_FRONT, STOPPED_CALL
from runner.triton_server.front.grpc_wire import SERVICE
from tests.hostile import Watch, chunked, flood, most_slow_s, request, resident_mib, send, status_of
from tests.runner.servers import ENSEMBLE, HOST, SLOT, TritonUnderTest, events, wait_until
from tests.runner.triton_server.front.running import front_pid

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"
ASKED = {"text_input": QUESTION, "max_tokens": 5}
LONG = {"text_input": QUESTION, "max_tokens": 4000, "stream": True}
MOST_GROWN_MIB = 64 + 8
DEEP = b'{"text_input":' + b"[" * 40_000 + b"]" * 40_000 + b"}"


@pytest.fixture(scope="module")
def stub(triton: TritonUnderTest) -> Iterator[Any]:
    with grpc.insecure_channel(f"{HOST}:{triton.grpc_port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def inference(
    model: str = "ensemble", max_tokens: int = 5, *, datatype: str = "INT32", is_streaming: bool = False
) -> Any:
    asked = pb.ModelInferRequest(model_name=model, id="asked")
    values = {
        "text_input": ("BYTES", len(QUESTION).to_bytes(4, "little") + QUESTION.encode()),
        "max_tokens": (datatype, np.array([max_tokens], datatype.lower()).tobytes()),
        "stream": ("BOOL", bytes([is_streaming])),
    }
    for name, (kind, raw) in values.items():
        asked.inputs.add(name=name, datatype=kind, shape=[1, 1])
        asked.raw_input_contents.append(raw)
    return asked


# Triton's own answers

PREPROCESSING = "/v2/models/preprocessing"
QUERY = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
READS = [
    *(
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        ENSEMBLE,
        SLOT,
        f"{ENSEMBLE}/ready",
        f"{ENSEMBLE}/config",
    ),
    *(f"{ENSEMBLE}/versions/1", f"{ENSEMBLE}/versions/2", f"{ENSEMBLE}/versions/1/ready"),
    *("/v2/models/none", "/v2/models/none/ready", "/v2/models/none/config"),
]
SAME: list[tuple[str, object]] = [
    (f"{ENSEMBLE}/generate", ASKED),
    (f"{ENSEMBLE}/generate", ASKED | {"id": "x"}),
    (f"{ENSEMBLE}/generate", ASKED | {"max_tokens": [5], "stop_words": ["a"], "temperature": 1}),
    (f"{ENSEMBLE}/generate", ASKED | {"unknown": 1}),
    (f"{ENSEMBLE}/generate", {"text_input": "a"}),
    (f"{ENSEMBLE}/generate", {}),
    (f"{ENSEMBLE}/generate", ASKED | {"text_input": ""}),
    (f"{ENSEMBLE}/generate", ASKED | {"parameters": {"a": 1}}),
    (f"{ENSEMBLE}/versions/1/generate", ASKED),
    (f"{ENSEMBLE}/generate_stream", ASKED),
    (f"{ENSEMBLE}/generate_stream", ASKED | {"stream": True}),
    (f"{ENSEMBLE}/generate_stream", {"text_input": "a"}),
    (f"{SLOT}/generate", {"input_ids": [1, 2], "request_output_len": 3, "runtime_top_p": 5.0}),
    (f"{SLOT}/generate_stream", {"input_ids": [1, 2], "request_output_len": 3, "runtime_top_p": 5.0}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY], "id": "x", "outputs": [{"name": "INPUT_ID"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY], "outputs": [{"name": "NONE"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": []}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY | {"name": "NONE"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY | {"datatype": "FP32", "data": [1]}]}),
]


def test_the_front_answers_as_triton_does(triton: TritonUnderTest) -> None:
    own = triton.service.stack.triton_url
    for path in READS:
        assert _same(httpx.get(triton.url + path, timeout=300)) == _same(
            httpx.get(own + path, timeout=300)
        ), path
    for path, body in SAME:
        ours, its = (
            httpx.post(url + path, content=json.dumps(body), timeout=300) for url in (triton.url, own)
        )
        assert _same(ours) == _same(its), (path, body)


def _same(response: httpx.Response) -> tuple[int, str, object]:
    kind = response.headers["content-type"] if response.text else ""
    shown = _merged(response.text) if kind.startswith("text/event-stream") else response.text
    return response.status_code, kind, shown


def _merged(stream: str) -> list[dict[str, Any]]:
    """Its events. Those that differ in their text alone are one: a busy machine bundles tokens."""
    merged: list[dict[str, Any]] = []
    for event in (json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line):
        text = event.pop("text_output", "")
        if not merged or merged[-1] | {"text_output": None} != event | {"text_output": None}:
            merged.append(event | {"text_output": ""})
        merged[-1]["text_output"] += text
    return merged


@pytest.mark.parametrize(
    ("path", "body", "status", "its_status"),
    [
        # A model that may send several responses is answered if it sends one.
        (f"{ENSEMBLE}/infer", {"inputs": []}, 400, 501),
        # Errors of the caller are 400, and have a code.
        (f"{ENSEMBLE}/generate", [], 400, 500),
        (f"{ENSEMBLE}/generate", ASKED | {"max_tokens": "5"}, 400, 500),
        (f"{PREPROCESSING}/infer", {}, 400, 500),
        # Management is closed.
        ("/v2/repository/index", {}, 403, 200),
    ],
)
def test_where_the_front_differs_on_purpose(
    triton: TritonUnderTest, path: str, body: object, status: int, its_status: int
) -> None:
    """And by 400 to generate for several responses: Triton answers 200 with an error, and may crash."""
    own = triton.service.stack.triton_url
    ours, its = (httpx.post(url + path, content=json.dumps(body), timeout=300) for url in (triton.url, own))
    assert (ours.status_code, its.status_code) == (status, its_status)


# Types, parameters


@pytest.mark.parametrize("datatype", ["INT32", "UINT32", "INT64", "UINT8"])
def test_max_tokens_of_any_integer_type(triton: TritonUnderTest, stub: Any, datatype: str) -> None:
    expected = triton.model.expected_text(QUESTION, 5)
    answer = stub.ModelInfer(inference(datatype=datatype))
    assert answer.raw_output_contents[0][4:].decode().endswith(expected)
    tensor = {"name": "max_tokens", "datatype": datatype, "shape": [1, 1], "data": [5]}
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [QUESTION]}
    shown = triton.post(f"{ENSEMBLE}/infer", {"inputs": [text, tensor]}).json()
    assert shown["outputs"][0]["data"][0].endswith(expected)


def test_a_client_can_not_stop_the_requests_of_others(triton: TritonUnderTest, stub: Any) -> None:
    with httpx.stream("POST", f"{triton.url}{ENSEMBLE}/generate_stream", json=LONG, timeout=300) as stream:
        lines = stream.iter_lines()
        next(lines)
        asked = inference()
        asked.parameters[ONLY_FRONT].string_param = "mine"
        asked.parameters[STOPPED_CALL].string_param = "0-0:1"
        stub.ModelInfer(asked)
        stopping = ASKED | {"parameters": {ONLY_FRONT: "mine"}}
        assert triton.post(f"{ENSEMBLE}/generate", stopping).status_code == 200
        for _ in range(100):
            assert "error" not in next(lines)


def test_a_stream_goes_on_after_a_request_that_is_refused(stub: Any) -> None:
    too_many = inference(max_tokens=1 << 40, datatype="INT64")
    answers = [*stub.ModelStreamInfer(iter([inference(), too_many, inference()]))]
    assert sorted("E1103" in each.error_message for each in answers) == [False, False, True]
    with pytest.raises(grpc.RpcError, match="E1103"):
        stub.ModelInfer(too_many)


def test_errors_of_grpc_calls_do_not_end_triton(triton: TritonUnderTest, stub: Any) -> None:
    """Triton 2.51 crashed within ten such streams, or a few hundred such calls (server#8708)."""
    pid = triton.service.stack.triton.pid
    bad = inference()
    bad.inputs.add(name="temperature", datatype="FP32", shape=[1, 1])
    bad.raw_input_contents.append(np.float32(-1).tobytes())
    for _ in range(20):
        asked = [inference(is_streaming=True), bad, inference(max_tokens=20, is_streaming=True)]
        streams = [
            stub.ModelStreamInfer(iter(asked), metadata=[("triton_grpc_error", "true")]) for _ in range(4)
        ]
        calls = [stub.ModelInfer.future(bad) for _ in range(4)]
        for each in [*streams, *calls]:
            with pytest.raises(grpc.RpcError, match="E1103"):
                list(each) if each in streams else each.result()
            assert each.code() == grpc.StatusCode.INVALID_ARGUMENT
    wait_until(lambda: triton.counters.is_settled)
    assert triton.service.stack.triton.pid == pid


def test_streams_with_requests_for_all_kinds_of_models_do_not_end_triton(
    triton: TritonUnderTest, stub: Any
) -> None:
    """Triton 2.51 aborted after a few such streams."""
    pid = triton.service.stack.triton.pid
    asked = [
        inference(model, max_tokens=20, is_streaming=number % 2 == 0)
        for number, model in enumerate(
            ["ensemble", "preprocessing", "unknown", "ensemble", "tensorrt_llm"] * 5
        )
    ]
    for number in range(30):
        streams = [stub.ModelStreamInfer(iter(asked)) for _ in range(3)]
        for each in streams:
            if number % 3:
                for answer in each:
                    assert answer.infer_response.id == "asked"
            else:
                next(each)
                each.cancel()
    wait_until(lambda: triton.counters.is_settled)
    assert triton.service.stack.triton.pid == pid


def test_readiness_and_management_by_grpc(stub: Any) -> None:
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="ensemble")).ready
    with pytest.raises(grpc.RpcError, match="E1109") as raised:
        stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]


def test_statistics_are_those_of_the_metrics(triton: TritonUnderTest, stub: Any) -> None:
    """Triton's own are not read while a stream grows: 2.51 would corrupt its memory. Here nothing runs."""
    wait_until(lambda: triton.counters.is_settled)
    with httpx.Client(base_url=f"http://{HOST}:{triton.http_port}") as client:

        def statistics() -> Any:
            return client.get(f"{ENSEMBLE}/versions/1/stats").json()["model_stats"][0]

        before = statistics()
        for _ in range(3):
            assert client.post(f"{ENSEMBLE}/generate", json=ASKED).status_code == 200
        # Triton counts a request only after its response.
        wait_until(lambda: statistics()["inference_count"] >= before["inference_count"] + 3)
        found, everything = statistics(), client.get("/v2/models/stats").json()["model_stats"]
        unknown = [client.get(f"/v2/models/{name}/stats") for name in ("nothing", "ensemble/versions/7")]
        assert client.post(f"{ENSEMBLE}/stats").status_code == 405
    assert found in everything
    assert [each["name"] for each in everything] == sorted(each["name"] for each in everything)
    assert [each.status_code for each in unknown] == [404, 404]
    assert all("E1108" in each.text for each in unknown)
    (its,) = httpx.get(f"{triton.service.stack.triton_url}{ENSEMBLE}/stats").json()["model_stats"]
    assert its.keys() == found.keys()
    for name, stat in its["inference_stats"].items():
        ours = found["inference_stats"][name]
        assert ours["count"] == stat["count"], name
        if name != "fail":  # Metrics have no times of failures, and whole microseconds.
            assert ours["ns"] == pytest.approx(stat["ns"], abs=1000 * (1 + stat["count"])), name
    (by_grpc,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="ensemble")).model_stats
    assert by_grpc.inference_stats.success.ns == found["inference_stats"]["success"]["ns"]
    with pytest.raises(grpc.RpcError, match="E1108") as raised:
        stub.ModelStatistics(pb.ModelStatisticsRequest(name="nothing"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


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


def _frames(frames: list[Frame]) -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(each.serialize() for each in frames)


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
