"""What fuzzing found of the servers for clients: the API server, the slot and the front of Triton."""

from __future__ import annotations

import asyncio
import gc

import httpx
import numpy as np
import pytest
from hpack import Encoder
from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Ready
from runner.http.connection import HTTPConnection
from runner.settings.api_keys import APIKeys
from runner.slot.request import parse_row
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.grpc.server import GRPCServer
from runner.triton_server.front.inference import Inference, Inferences
from runner.triton_server.front.tensors import adapt
from runner.triton_server.grpc_client.connection import TritonConnection
from runner.triton_server.grpc_wire import INTERNAL
from tests.fuzz import bodies
from tests.fuzz import front_connections as front
from tests.fuzz.triton_standin import models, stand_in


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"prompt": 5, "user": "\\ud800"}', {}),
        (b'{"prompt": 5, ', {}),
        (b'{"prompt": "hi"}', {"content-length": "9" * 5000}),
    ],
    ids=["half a character behind a wrong field", "no end behind a wrong field", "a long content-length"],
)
def test_such_a_body_is_refused(content: bytes, headers: dict[str, str]) -> None:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=bodies.transport(), base_url="http://api") as client:
            return await client.post("/v1/completions", content=content, headers={**bodies.JSON, **headers})

    response = asyncio.run(post())
    assert response.status_code in (400, 413)
    assert response.json()["error"]["code"] in ("E1005", "E1600", "E1606")


def test_integers_that_no_type_holds_together_are_refused() -> None:
    request = pb.ModelInferRequest()
    tensor = request.inputs.add(name="input_ids", datatype="UINT64", shape=[1, 2])
    tensor.contents.int64_contents.append(-1)
    tensor.contents.uint64_contents.append((1 << 64) - 1)
    with pytest.raises(CodedError, match="E1103"):
        adapt(request, models()["tensorrt_llm"])


def test_a_text_of_a_client_is_no_end_of_an_answer() -> None:
    """It is as the wire has the parameter by which Triton marks the last response."""
    triton, inferences = stand_in()
    inference = Inference(inferences, None, "1", [], lambda message: None, lambda status, text: None)
    request = pb.ModelInferRequest(model_name="tensorrt_llm", id="triton_final_response\x12\x02\x08\x01")
    inference.send(request)
    answer = pb.ModelStreamInferResponse()
    answer.infer_response.id = request.id
    answer.infer_response.parameters["triton_final_response"].bool_param = False
    triton.calls[0].on_message(answer.SerializeToString())
    assert inferences.running == 1
    answer.infer_response.parameters["triton_final_response"].bool_param = True
    triton.calls[0].on_message(answer.SerializeToString())
    assert inferences.running == 0


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize(
    "last",
    [front.frame(front.GOAWAY, 0, 0, bytes(8)), front.frame(front.RESET, 0, 1, bytes(4))],
    ids=["the connection", "the call"],
)
@pytest.mark.parametrize("path", front.METHOD_PATHS[:3])
async def test_a_client_of_grpc_that_ends_what_is_answered_disturbs_nobody(
    path: bytes, last: bytes, is_ready: bool
) -> None:
    """Triton's answer must raise no error: it would end the connection to Triton, which all clients share."""
    triton, inferences = stand_in()
    server = GRPCServer(
        inferences,
        front.UnreachableTriton(),
        APIKeys(()),
        Budget(1 << 20),
        lambda: is_ready,
        max_body_bytes=99,
        is_managed=False,
    )
    connection, transport = server.connection(), front.Transport(is_read=True)
    connection.connection_made(transport)
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path)]
    connection.receive(
        front.PREFACE
        + front.frame(front.SETTINGS, 0, 0, b"")
        + front.frame(front.HEADERS, front.END_HEADERS, 1, Encoder().encode(fields))
        + front.frame(front.DATA, 0, 1, bytes(5))
        + last
    )
    for call in list(triton.calls):
        call.on_message(b"")
        call.on_end(0, "")
    connection.connection_lost(None)
    assert inferences.running == 0


def test_a_diversity_of_beams_that_is_no_number_is_refused() -> None:
    ready = Ready("tensorrt_llm", vocab_size=1000, max_sequence_length=64, max_batch_size=8)
    tensors = {"input_ids": np.ones((1, 3), np.int32), "request_output_len": np.ones(1, np.int32)}
    tensors["beam_width"] = np.full(1, 2, np.int32)
    tensors["beam_search_diversity_rate"] = np.full(1, np.nan, np.float32)
    with pytest.raises(CodedError, match=r"E1103.*beam_search_diversity_rate"):
        parse_row(tensors, 0, ready, includes_input=False)


def received(inferences: Inferences, request: bytes) -> tuple[HTTPConnection, front.Transport]:
    """Return a connection of the front that has just got the request."""
    connection = front.http_connection(inferences, APIKeys(()), is_managed=False)
    transport = front.Transport(is_read=True)
    connection.connection_made(transport)
    connection.data_received(request)
    return connection, transport


async def test_many_responses_at_once_are_one_answer_of_generate() -> None:
    triton, inferences = stand_in()
    request = b"POST /v2/models/tensorrt_llm/generate HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    _, transport = received(inferences, request)
    for _ in range(4):
        await asyncio.sleep(0)
    (call,) = triton.calls
    for _ in range(4):
        call.on_message(b"")
        await asyncio.sleep(0)
    assert transport.written.count(b"HTTP/1.1") == 1


async def test_work_for_a_client_that_leaves_at_once_is_never_begun(recwarn: pytest.WarningsRecorder) -> None:
    _, inferences = stand_in()
    connection, transport = received(inferences, b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    assert not transport.written
    gc.collect()
    assert [*recwarn] == []


async def test_an_answer_that_can_not_be_passed_on_ends_its_call_alone() -> None:
    ends: list[object] = []

    def fail(message: bytes) -> None:
        raise ValueError("a client that can't be answered")

    connection = TritonConnection("triton")
    connection.connection_made(front.Transport(is_read=True))
    calls = [
        connection.begin("/x", [], on_message, lambda status, text: ends.append(status))
        for on_message in (fail, ends.append)
    ]
    for call in calls:
        call.receive(bytes(5))
    assert ends == [INTERNAL, b""]
