"""The front, Triton or the engine server ends or is stopped; requests up to the limit; keys."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.hostile import request
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.running import Running, is_healthy
from tests.runner.servers import (
    DEADLINE_S,
    ENSEMBLE,
    HOST,
    SLOT,
    TritonUnderTest,
    events,
    is_running,
    wait_until,
)
from tests.runner.triton_server.front.running import front_of, front_pid

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"
LONG = {"text_input": QUESTION, "max_tokens": 4000, "stream": True}
SHORT = {"text_input": QUESTION, "max_tokens": 3}
KEY = {"Authorization": "Bearer the-key"}
LIMIT = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    return make_paced_model(tmp_path_factory.mktemp("front") / "model", 100)


@pytest.fixture(scope="module")
def server(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    """Each test leaves it serving again."""
    folder: Path = tmp_path_factory.mktemp("front")
    server = TritonUnderTest(
        model, folder, TRITON_MAX_REQUESTS=str(LIMIT), API_KEYS="the-key,other", FAILURE_LIMIT="99"
    )
    yield server
    server.close()


def ask(server: TritonUnderTest, path: str = f"{ENSEMBLE}/generate", **body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=SHORT | body, headers=KEY, timeout=DEADLINE_S)


def is_serving(server: TritonUnderTest) -> bool:
    return is_healthy(server) and ask(server).status_code == 200


def streamed_text(server: TritonUnderTest) -> str:
    """Return what the slot streams to the front past Triton."""
    body = {"input_ids": server.model.ids(QUESTION), "request_output_len": 30, "streaming": True}
    url = f"{server.url}{SLOT}/generate_stream"
    answer = httpx.post(url, json=body, headers=KEY, timeout=DEADLINE_S)
    ids: list[int] = []
    for event in events(answer.text):
        new = event["output_ids"]
        ids += new if isinstance(new, list) else [new]
    return server.model.tokenizer.decode(ids)


class Stream:
    """A long stream of the ensemble; ``end`` has its last events once it has ended."""

    def __init__(self, server: TritonUnderTest) -> None:
        self.end: list[dict[str, Any]] = []
        self._has_begun = threading.Event()
        self._url = f"{server.url}{ENSEMBLE}/generate_stream"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._has_begun.wait(DEADLINE_S)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=LONG, headers=KEY, timeout=DEADLINE_S) as response:
                for line in response.iter_lines():
                    self.end = events(line) or self.end
                    self._has_begun.set()
        except httpx.HTTPError as exc:
            self.end = [{"error": f"closed ({type(exc).__name__})"}]

    def error(self) -> str:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return str(self.end[-1].get("error"))


def test_keys_protect_all_but_health_and_metrics(server: TritonUnderTest) -> None:
    for path in ("/v2", ENSEMBLE, "/v2/models/stats", "/v2/repository/index"):
        assert httpx.get(server.url + path, timeout=300).status_code == 401, path
        assert (
            httpx.get(server.url + path, headers={"Authorization": "Bearer no"}, timeout=300).status_code
            == 401
        )
    assert httpx.post(f"{server.url}{ENSEMBLE}/generate", json=SHORT, timeout=300).status_code == 401
    assert httpx.get(f"{server.url}/v2/health/ready", timeout=300).status_code == 200
    assert ask(server).status_code == 200
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = (("authorization", "Bearer other"),)
        assert stub.ServerReady(pb.ServerReadyRequest(), metadata=metadata).ready
        with pytest.raises(grpc.RpcError) as raised:
            stub.ModelInfer(pb.ModelInferRequest(model_name="ensemble"))
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def _left(server: TritonUnderTest) -> None:
    with socket.create_connection((HOST, server.http_port)) as connection:
        body = json.dumps(LONG | {"stream": False}).encode()
        connection.sendall(request(f"{ENSEMBLE}/generate", body, "Authorization: Bearer the-key"))
        wait_until(lambda: server.counters.running)


def _cut_upload(server: TritonUnderTest) -> None:
    with socket.create_connection((HOST, server.http_port)) as connection:
        head = request(f"{ENSEMBLE}/generate", b"a" * 100_000, "Authorization: Bearer the-key")
        connection.sendall(head[:-50_000])


ENDS: dict[str, Callable[[TritonUnderTest], int | None]] = {
    "answered": lambda server: ask(server).status_code - 200,
    "invalid": lambda server: ask(server, max_tokens="x").status_code - 400,
    "failed": lambda server: ask(server, temperature=-5.0).status_code - 400,
    "several responses": lambda server: ask(server, stream=True, max_tokens=100).status_code - 400,
    "left": _left,
    "cut off": _cut_upload,
}
"""Ends of a request; each returns 0 or None."""


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_every_end_of_a_request_makes_room_for_another(
    server: TritonUnderTest, end: Callable[[TritonUnderTest], int | None]
) -> None:
    for _ in range(LIMIT + 1):
        assert not end(server)
        wait_until(lambda: server.counters.running == 0)
    lines: list[Iterator[str]] = []
    with ExitStack() as stack:
        for _ in range(LIMIT):
            url = f"{server.url}{ENSEMBLE}/generate_stream"
            stream = httpx.stream("POST", url, json=LONG, headers=KEY, timeout=DEADLINE_S)
            lines.append(stack.enter_context(stream).iter_lines())  # Collected, it would end the stream.
            assert next(lines[-1]).startswith("data:")
        answer = ask(server)
        assert (answer.status_code, answer.json()["error"][:5]) == (429, "E1111")
    wait_until(lambda: ask(server).status_code == 200)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_front_that_ends_loses_only_tritons_clients_and_their_requests_are_freed(
    server: TritonUnderTest, number: signal.Signals
) -> None:
    wait_until(lambda: is_serving(server))
    assert streamed_text(server) == server.model.expected_text(QUESTION, 30)
    other = Running(server, 400)
    streams = [Stream(server) for _ in range(2)]
    pid, triton_pid = front_pid(server), server.service.stack.triton.pid
    os.kill(pid, number)
    # Its clients wait on the open port.
    assert httpx.get(f"{server.url}/v2/health/live", timeout=DEADLINE_S).status_code == 200
    assert not is_running(pid)
    assert all("closed" in each.error() for each in streams)
    wait_until(lambda: server.counters.running <= 1, 20)
    assert server.run(other.read_all()) == server.model.expected_text(QUESTION, 400)
    wait_until(lambda: server.counters.running == 0)
    wait_until(lambda: is_serving(server))
    assert server.service.stack.triton.pid == triton_pid
    assert streamed_text(server) == server.model.expected_text(QUESTION, 30), "its first tokens, too"


def test_streams_end_with_an_error_when_triton_ends_and_the_front_serves_again(
    server: TritonUnderTest,
) -> None:
    wait_until(lambda: is_serving(server))
    pid, triton = front_pid(server), server.service.stack.triton
    stream = Stream(server)
    os.kill(triton.pid, signal.SIGKILL)
    assert "E2105" in stream.error()
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        statuses = set()
        while not is_healthy(server):
            answer = ask(server)
            if answer.status_code != 200:
                assert "E2105" in answer.text
            try:
                stub.ModelMetadata(
                    pb.ModelMetadataRequest(name="ensemble"), metadata=(("authorization", "Bearer the-key"),)
                )
            except grpc.RpcError as exc:
                statuses.add(exc.code())
    assert statuses <= {grpc.StatusCode.UNAVAILABLE}
    wait_until(lambda: is_serving(server))
    assert front_pid(server) == pid
    assert front_of(server).restarts <= 2


def test_readiness_tells_the_engines_too(server: TritonUnderTest, model: PacedModel) -> None:
    wait_until(lambda: is_serving(server))
    pace = model.directory / "paced.json"
    pace.rename(pace.with_name("away.json"))
    try:
        os.kill(server.engine_pid(), signal.SIGKILL)
        for path in ("/v2/health/ready", f"{SLOT}/ready"):
            wait_until(
                lambda path=path: httpx.get(server.url + path, headers=KEY, timeout=300).status_code == 503
            )
        assert httpx.get(f"{server.url}/v2/health/live", timeout=300).status_code == 200
        with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            metadata = (("authorization", "Bearer the-key"),)
            assert not stub.ServerReady(pb.ServerReadyRequest(), metadata=metadata).ready
            assert not stub.ModelReady(pb.ModelReadyRequest(name="ensemble"), metadata=metadata).ready
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"") == b"\x08\x02"
    finally:
        pace.with_name("away.json").rename(pace)
    wait_until(lambda: is_serving(server))
