"""The front before a real Triton: clients that disconnect, and slow ones."""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.hostile import request, send, status_of
from tests.runner.servers import ENSEMBLE, HOST, SLOT, TritonUnderTest, wait_until
from tests.runner.triton_server.front.running import ASKED, QUESTION, inference

pytestmark = pytest.mark.servers

LONG = {"text_input": QUESTION, "max_tokens": 4000, "stream": True}


def _leave_http(path: str, body: dict[str, Any]) -> Callable[[TritonUnderTest, Any], Callable[[], None]]:
    def begin(triton: TritonUnderTest, _: Any) -> Callable[[], None]:
        connection = socket.create_connection((HOST, triton.http_port))
        connection.sendall(request(path, json.dumps(body).encode()))
        return connection.close

    return begin


def _leave_unary(_: TritonUnderTest, stub: Any) -> Callable[[], object]:
    return stub.ModelInfer.future(inference(max_tokens=4000)).cancel


def _leave_stream(_: TritonUnderTest, stub: Any) -> Callable[[], object]:
    stream = stub.ModelStreamInfer(iter([inference(max_tokens=4000, is_streaming=True)] * 3))
    next(stream)
    return stream.cancel


def _deadline(triton: TritonUnderTest, stub: Any) -> Callable[[], object]:
    """Ask with a deadline that passes while the engine runs: on a busy machine a short one passes before."""
    timeout_s = 1
    while True:
        call = stub.ModelInfer.future(inference(max_tokens=4000), timeout=timeout_s)
        wait_until(lambda call=call: triton.counters.running >= 1 or call.done())
        if not call.done():
            return call.exception
        timeout_s *= 4


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
    before = triton.counters.cancelled
    leave = begin(triton, stub)
    wait_until(lambda: triton.counters.running >= 1 or triton.counters.cancelled > before)
    leave()
    wait_until(lambda: triton.counters.cancelled > before and triton.counters.running == 0)


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
