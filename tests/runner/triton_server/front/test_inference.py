"""Inference calls and the client of Triton by themselves, with a stand-in of Triton. No process."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from errors.requests import InvalidTensor
from errors.triton import TritonUnavailable
from errors.triton_front import TooManyBytes, TooManyInferences
from runner.engines.protocol.triton_front import CALL, ONLY_FRONT, SINGLE_RESPONSE, STOPPED_CALL
from runner.settings.ports import free_ports
from runner.triton_server.front.inference import Inference, Inferences
from runner.triton_server.front.starts import Starts
from runner.triton_server.grpc_client.triton import RefusedByTriton, Triton
from runner.triton_server.grpc_wire import INTERNAL, OK, UNAVAILABLE, prefixed
from runner.triton_server.model_names import SLOT
from tests.fuzz.triton_standin import StandInTriton, stand_in
from tests.runner.triton_server.grpc_client.server import HEAD, Server


class Client:
    """The client of one inference call, which gets ``got`` and ``ends``."""

    def __init__(self, inferences: Inferences, *, is_single: bool = False, client: object = None) -> None:
        self.got: list[Any] = []
        self.ends: list[tuple[int, str]] = []
        self.inference = Inference(
            inferences,
            client,
            inferences.next_key(),
            [],
            lambda message: self.got.append(pb.ModelStreamInferResponse.FromString(message)),
            lambda status, text: self.ends.append((status, text)),
            is_single=is_single,
        )


def asked(model: str = "tensorrt_llm", **parameters: object) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    for name, value in parameters.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "string_param", value)
    return request


def response(*, is_final: bool, error: str = "", has_output: bool = False) -> bytes:
    message = pb.ModelStreamInferResponse(error_message=error)
    message.infer_response.parameters["triton_final_response"].bool_param = is_final
    if has_output:
        message.infer_response.outputs.add(name="output_ids", datatype="INT32", shape=[1])
    return bytes(message.SerializeToString())


def stops(triton: StandInTriton) -> list[tuple[str, str]]:
    """Return the calls, or calls of other fronts, that the slot was told to stop."""
    sent = [pb.ModelInferRequest.FromString(call.sent[-1]) for call in triton.calls if call.sent]
    names = (STOPPED_CALL, ONLY_FRONT)
    return [
        (name, each.parameters[name].string_param)
        for each in sent
        for name in names
        if name in each.parameters
    ]


def test_a_request_gets_our_parameters_and_none_of_the_client() -> None:
    triton, inferences = stand_in()
    client = Client(inferences, is_single=True)
    client.inference.send(asked(**{CALL: "x", STOPPED_CALL: "y", ONLY_FRONT: "z", "own": "kept"}))
    (call,) = triton.calls
    sent = pb.ModelInferRequest.FromString(call.sent[0])
    assert set(sent.parameters) == {CALL, SINGLE_RESPONSE, "triton_enable_empty_final_response", "own"}
    assert sent.parameters[CALL].string_param.endswith(":1")


@pytest.mark.parametrize("wants_final", [True, False])
def test_an_empty_last_response_is_passed_on_if_it_was_asked_for(wants_final: bool) -> None:
    triton, inferences = stand_in()
    client = Client(inferences)
    client.inference.send(asked(triton_enable_empty_final_response=wants_final))
    (call,) = triton.calls
    assert inferences.running == 1
    call.on_message(response(is_final=False, has_output=True))
    call.on_message(response(is_final=True))
    assert len(client.got) == 1 + wants_final
    assert inferences.running == 0
    call.on_end(OK, "")
    assert client.ends == [(OK, "")]
    assert stops(triton) == []


def test_a_call_that_ends_well_without_its_last_response_is_an_error() -> None:
    triton, inferences = stand_in()
    client = Client(inferences)
    client.inference.send(asked())
    (call,) = triton.calls
    call.on_message(response(is_final=False, has_output=True))
    call.on_end(OK, "")
    ((status, text),) = client.ends
    assert (status, text[:5]) == (UNAVAILABLE, "E2105")
    assert inferences.running == 0


def test_a_text_of_a_client_is_no_end_of_an_answer() -> None:
    """It is as the wire has the parameter by which Triton marks the last response."""
    triton, inferences = stand_in()
    request = asked()
    request.id = "triton_final_response\x12\x02\x08\x01"
    Client(inferences).inference.send(request)
    for is_final in (False, True):
        answer = pb.ModelStreamInferResponse.FromString(response(is_final=is_final))
        answer.infer_response.id = request.id
        triton.calls[0].on_message(answer.SerializeToString())
        assert inferences.running == (not is_final)


@pytest.mark.parametrize("end", ["cancel", "error", "deadline"])
def test_what_runs_for_a_call_that_ends_early_is_stopped(end: str) -> None:
    triton, inferences = stand_in()
    client = Client(inferences)
    client.inference.send(asked("ensemble"))
    (call,) = triton.calls
    if end == "cancel":
        client.inference.cancel()
    elif end == "error":
        call.on_end(INTERNAL, "E2107")
    else:  # Triton then tells that the ensemble has failed, and ends the call well.
        call.on_message(response(is_final=True, error="deadline"))
        call.on_end(4, "deadline")
    assert inferences.running == (1 if end == "cancel" else 0)
    ((kind, key),) = stops(triton)
    assert (kind, key.rpartition(":")[2]) == (STOPPED_CALL, "1")
    assert client.ends == ([] if end == "cancel" else client.ends[:1])


def test_what_triton_has_of_a_client_that_left_counts_until_it_ends() -> None:
    triton, inferences = stand_in()
    clients = [Client(inferences) for _ in range(2)]
    for client in clients:
        client.inference.send(asked("ensemble", text="a" * 3000))
    answered, waiting = triton.calls
    answered.on_message(response(is_final=False, has_output=True))
    for client in clients:
        client.inference.cancel()
    assert answered.is_ignored
    assert waiting.is_ignored
    assert inferences.running == 2
    assert inferences.budget.held_bytes == len(waiting.sent[0]) > 3000
    for call in (answered, waiting):
        call.on_end(OK, "")
    assert (inferences.running, inferences.budget.held_bytes) == (0, 0)
    assert [len(client.got) for client in clients] == [1, 0]
    assert [client.ends for client in clients] == [[], []]


def test_what_triton_has_counts_also_while_others_send_too_much() -> None:
    """Only a request that has not arrived completely can give way."""
    _, inferences = stand_in()
    budget = inferences.budget
    client = Client(inferences)
    client.inference.send(asked("ensemble", text="a" * 100_000))
    with pytest.raises(TooManyBytes):
        budget.share(lambda error: None).hold(50_000)
    assert budget.held_bytes > 100_000


def test_a_request_that_gave_way_before_its_turn_is_not_stopped_in_the_slot() -> None:
    triton, inferences = stand_in()
    inferences._starts = Starts(1)
    clients = [Client(inferences, client="many") for _ in range(8)]
    for client in clients:
        client.inference.send(asked())
    Client(inferences, client="one").inference.send(asked())
    assert "E1111" in clients[-1].got[0].error_message
    assert clients[-1].ends == [(OK, "")]
    assert stops(triton) == []


def test_nvidias_backend_is_told_by_a_reset_that_a_client_left() -> None:
    triton, inferences = stand_in()
    inferences.models._models[SLOT] = replace(inferences.models._models[SLOT], is_python=False)
    client = Client(inferences)
    client.inference.send(asked())
    (call,) = triton.calls
    client.inference.cancel()
    assert (call.is_reset, triton.calls, inferences.running) == (True, [], 0)


def test_requests_beyond_the_maximum_and_bad_ones_are_not_sent() -> None:
    triton, inferences = stand_in()
    client = Client(inferences)
    bad = asked()
    bad.inputs.add(name="request_output_len", datatype="INT64", shape=[1, 1])
    bad.raw_input_contents.append(np.int64(1 << 40).tobytes())
    with pytest.raises(InvalidTensor, match="E1103"):
        client.inference.send(bad)
    for _ in range(inferences.max_requests):
        Client(inferences).inference.send(asked())
    with pytest.raises(TooManyInferences, match="E1111"):
        client.inference.send(asked())
    client.inference.cancel()
    assert len(triton.calls) == inferences.running == inferences.max_requests


SIZES: list[tuple[str, list[int], bytes]] = [
    ("INT32", [1, 3], b"\0" * 8),
    ("INT32", [1, 1], b"\0" * 5),
    ("INT32", [1, -1], b"\0" * 4),
    ("INT32", [-1, -1], b"\0" * 4),
    ("INT32", [1 << 40, 1 << 40], b""),
    ("INT64", [1 << 61, 8], b""),
    ("BOOL", [1, 2], b"\0"),
    ("FP16", [1, 1], b"\0"),
    ("BF16", [1, 1], b"\0"),
    ("BYTES", [1, 1], b""),
    ("BYTES", [1, 1], b"\1\0\0"),
    ("BYTES", [1, 1], b"\xff\xff\xff\xffa"),
    ("BYTES", [1, 1], b"\1\0\0\0"),
    ("BYTES", [1, 1], b"\1\0\0\0ab"),
    ("BYTES", [1, 1], b"\0" * 8),
    ("BYTES", [1, 2], b"\0" * 4),
    ("BYTES", [0], b"\0" * 4),
]


@pytest.mark.parametrize(("datatype", "shape", "raw"), SIZES)
def test_data_of_another_size_than_its_shape_is_not_sent(datatype: str, shape: list[int], raw: bytes) -> None:
    triton, inferences = stand_in()
    request = asked("ensemble")
    request.inputs.add(name="other", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(b"\0" * 4)
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    with pytest.raises(InvalidTensor, match="E1103 InvalidTensor: x must be"):
        Client(inferences).inference.send(request)
    assert (triton.calls, inferences.running) == ([], 0)


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("BYTES", [2, 1], b"\1\0\0\0a\0\0\0\0"),
        ("BYTES", [0], b""),
        ("BF16", [1, 2], b"\0" * 4),
        ("FP64", [2], b"\0" * 16),
        ("INT8", [], b"\0"),
    ],
)
def test_data_of_the_size_of_its_shape_is_sent(datatype: str, shape: list[int], raw: bytes) -> None:
    triton, inferences = stand_in()
    request = asked("ensemble")
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)
    Client(inferences).inference.send(request)
    assert len(triton.calls) == 1


async def test_calls_of_an_earlier_front_are_stopped_once_triton_is_connected() -> None:
    triton, inferences = stand_in()
    triton.is_up = triton.is_reachable = False
    with pytest.raises(TritonUnavailable):
        await inferences.connect()
    triton.is_reachable = True
    for _ in range(2):
        await inferences.connect()
    assert [kind for kind, _ in stops(triton)] == [ONLY_FRONT]


# The client of Triton


async def test_triton_that_is_not_there_is_unavailable_and_then_connected() -> None:
    (port,) = free_ports(1)
    triton = Triton(port)
    with pytest.raises(TritonUnavailable, match="E2105"):
        await triton.connect()
    with pytest.raises(TritonUnavailable, match="E2105"):
        triton.begin("ModelInfer", [], print, print)
    closed = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        writer.close()
        closed.set()

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        await triton.connect()
        with pytest.raises(TritonUnavailable, match="E2105"):
            await triton.ask("ModelConfig", b"")
        await closed.wait()
        assert not triton.is_connected


@pytest.mark.parametrize("status", [OK, INTERNAL, UNAVAILABLE])
async def test_a_question_has_one_answer_or_an_error(status: int) -> None:
    server = Server()
    triton = Triton(0)
    triton._connection = server.connection
    task = asyncio.create_task(triton.ask("ModelConfig", b"asked"))
    await asyncio.sleep(0)
    server.exchange()
    assert server.data_of(1) == prefixed(b"asked")
    server.h2.send_headers(1, HEAD)
    if status == OK:
        server.h2.send_data(1, prefixed(b"answer"))
    server.h2.send_headers(1, [("grpc-status", str(status)), ("grpc-message", "why")], end_stream=True)
    server.exchange()
    if status == OK:
        assert await task == b"answer"
    else:
        error = TritonUnavailable if status == UNAVAILABLE else RefusedByTriton
        with pytest.raises(error):
            await task
