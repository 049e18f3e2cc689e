"""Calls of clients by gRPC: their answers, their ends, and what Triton gets of them. No process."""

import asyncio
import math
import struct
from itertools import pairwise

import pytest
from h2.events import DataReceived
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from runner.triton_server.grpc_wire import SERVICE, Messages, TooLong, prefixed
from tests.fuzz.triton_standin import StandInTriton, stand_in
from tests.runner.triton_server.front.grpc.client import (
    EMPTY,
    INTERNAL,
    INVALID_ARGUMENT,
    MAX_BODY_BYTES,
    OK,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNIMPLEMENTED,
    Client,
)


@given(st.lists(st.binary(max_size=300), max_size=10), st.data())
def test_every_split_into_reads_gives_the_same_messages(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(prefixed, messages))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)) | {0, len(stream)})
    whole, split = Messages(300), Messages(300)
    assert whole.feed(stream) == messages
    found = [each for at, end in pairwise(cuts) for each in split.feed(stream[at:end])]
    assert found == messages
    assert whole.num_bytes == split.num_bytes == 0


@pytest.mark.parametrize("piece_bytes", [1, 100])
@pytest.mark.parametrize("data", [struct.pack(">BI", 0, 301), b"\1" + prefixed(b"a")[1:]])
def test_messages_that_are_too_long_or_compressed_are_known_by_their_prefix(
    data: bytes, piece_bytes: int
) -> None:
    messages = Messages(300)

    def feed_all() -> None:
        for at in range(0, len(data), piece_bytes):
            messages.feed(data[at : at + piece_bytes])

    with pytest.raises(TooLong):
        feed_all()
    assert messages.num_bytes <= 100


@pytest.mark.parametrize(
    ("method", "data", "status", "said"),
    [
        ("ServerReady", EMPTY, OK, ""),
        ("ModelReady", prefixed(b"\x0a\x01a"), OK, ""),
        ("/grpc.health.v1.Health/Check", EMPTY, OK, ""),
        ("ServerReady", b"", INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"", INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"\1\0\0\0\0", INVALID_ARGUMENT, "compressed"),
        ("ModelInfer", prefixed(b"\xff" * 100), INVALID_ARGUMENT, "E1107"),
        ("ModelInfer", b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED, "TRITON_MAX_BODY_BYTES"),
        ("ModelInfer", prefixed(b"a" * (MAX_BODY_BYTES + 1)), RESOURCE_EXHAUSTED, "E1110"),
        ("ModelStreamInfer", b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED, "E1110"),
        ("ServerReady", prefixed(b"a" * 70_000), RESOURCE_EXHAUSTED, "E1110"),
        ("RepositoryModelLoad", EMPTY, 7, "E1109"),
        ("TraceSetting", EMPTY, 7, "E1109"),
        ("Nothing", EMPTY, UNIMPLEMENTED, "no method"),
        ("/grpc.health.v1.Health/Watch", EMPTY, UNIMPLEMENTED, "no method"),
        ("/" + "a" * 5000, EMPTY, UNIMPLEMENTED, "no method"),
        ("/../" + SERVICE + "/ModelInfer", EMPTY, UNIMPLEMENTED, "no method"),
    ],
)
async def test_a_call_is_answered_or_has_a_sentence(method: str, data: bytes, status: int, said: str) -> None:
    client = await Client().open()
    trailers = await client.call(method, data)
    assert int(trailers["grpc-status"]) == status
    assert said in trailers.get("grpc-message", "").replace("%20", " ")
    assert len(trailers.get("grpc-message", "")) < 500
    assert not client.is_closed
    assert (len(client.server.open), client.budget.held_bytes) == (0, 0)


async def test_several_messages_on_a_unary_call_are_refused() -> None:
    client = await Client(is_ready=True).open()
    client.inferences.is_connected = False  # So that the messages wait.
    client.inferences.connect = asyncio.Event().wait
    stream_id = client.begin("ServerReady")
    client.h2.send_data(stream_id, EMPTY * 3)
    await client.flush()
    assert len(client.server.open) == 1
    client.transport.lose()
    assert len(client.server.open) == 0


async def test_keys_are_checked_before_a_message_is_received() -> None:
    client = await Client(keys=("the-key",)).open()
    for given_key in ([], [("authorization", "Bearer other")], [("authorization", "the-key")]):
        assert (await client.call("ServerReady", EMPTY, *given_key))["grpc-status"] == str(UNAUTHENTICATED)
    right = ("authorization", "bearer the-key")
    assert (await client.call("ServerReady", EMPTY, right))["grpc-status"] == "0"
    assert (await client.call("/grpc.health.v1.Health/Check", EMPTY))["grpc-status"] == "0"


async def test_what_is_under_way_of_a_refused_call_leaves_the_connection_open() -> None:
    """A client that sends 64 KB at once knows of the refusal only later; other calls of it run."""
    client = await Client(keys=("the-key",)).open()
    stream_id = client.begin("ModelInfer")
    for _ in range(4):
        client.h2.send_data(stream_id, bytes(16_000))
    await client.flush()
    assert client.trailers(stream_id)["grpc-status"] == str(UNAUTHENTICATED)
    assert not client.is_closed
    assert client.budget.held_bytes < 1 << 14


async def test_a_connection_waits_for_one_turn_however_many_calls_waited_for_triton() -> None:
    client = await Client().open()
    connected = asyncio.Event()
    client.inferences.is_connected, client.inferences.connect = False, connected.wait
    for _ in range(20):
        client.ask("ServerReady")
    await client.flush()
    client.inferences.is_connected = True
    connected.set()
    waiting = client.server.turns._waiting
    while not waiting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert len(waiting) == 1


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("dies", [False, True])
async def test_a_client_that_leaves_during_an_upload_leaves_nothing(method: str, dies: bool) -> None:
    client = await Client().open()
    stream_id = client.begin(method)
    client.h2.send_data(stream_id, struct.pack(">BI", 0, MAX_BODY_BYTES) + bytes(10_000))
    await client.flush()
    assert (len(client.server.open), client.budget.held_bytes) == (1, 10_005)
    if dies:
        client.transport.lose()
    else:
        client.h2.reset_stream(stream_id, 8)
        await client.flush()
    assert (len(client.server.open), client.budget.held_bytes) == (0, 0)
    assert [*client.server.connections] == ([] if dies else [client.connection])


async def test_an_unexpected_error_ends_its_call_only() -> None:
    client = await Client(is_ready=True).open()
    client.begin("ModelStreamInfer")
    # The stand-in has no Triton: an AttributeError.
    assert (await client.call("ServerReady", EMPTY))["grpc-status"] == str(INTERNAL)
    assert not client.is_closed
    assert len(client.server.open) == 1


async def _inference(*more: tuple[str, str]) -> tuple[Client, StandInTriton, int]:
    triton, inferences = stand_in()
    client = await Client(inferences=inferences).open()
    stream_id = client.begin("ModelStreamInfer", *more)
    request = pb.ModelInferRequest(model_name="ensemble").SerializeToString()
    client.h2.send_data(stream_id, prefixed(request))
    await client.flush()
    return client, triton, stream_id


@pytest.mark.parametrize(
    ("error", "status"),
    [("E1103 InvalidTensor: x", INVALID_ARGUMENT), ("in the model", INTERNAL), ("", None)],
)
async def test_a_stream_ends_at_its_first_error_if_its_client_asks_so(error: str, status: int | None) -> None:
    client, triton, stream_id = await _inference(("triton_grpc_error", "true"))
    (call,) = triton.calls
    assert call.metadata == []  # Triton 2.51 may crash at an error of such a call.
    response = pb.ModelStreamInferResponse(error_message=error)
    response.infer_response.parameters["triton_final_response"].bool_param = not error
    call.on_message(response.SerializeToString())
    await client.flush()
    trailers = client.trailers(stream_id)
    assert trailers.get("grpc-status") == (None if status is None else str(status))
    assert trailers.get("grpc-message", "") == error
    assert call.is_ignored == bool(error)


@pytest.mark.parametrize("timeout", ["1m", "1000u", "0S", "99999999n"])
async def test_a_deadline_ends_a_call_before_triton_knows_of_it(timeout: str) -> None:
    client, triton, stream_id = await _inference(("grpc-timeout", timeout))
    assert triton.calls[0].metadata == []
    while "grpc-status" not in client.trailers(stream_id):
        await asyncio.sleep(0.01)
        await client.flush()
    assert client.trailers(stream_id)["grpc-status"] == "4"
    assert triton.calls[0].is_ignored


@pytest.mark.parametrize("timeout", ["99999999H", "1", "-1S", "1s", "123456789S", ""])
async def test_long_deadlines_and_malformed_ones_end_no_call(timeout: str) -> None:
    client, _, stream_id = await _inference(("grpc-timeout", timeout))
    assert "grpc-status" not in client.trailers(stream_id)
    assert client.inferences.running == 1


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("end", ["the connection", "the call"])
@pytest.mark.parametrize("method", ["ModelStreamInfer", "ModelInfer", "ServerReady"])
async def test_a_client_that_ends_what_is_answered_disturbs_nobody(
    method: str, end: str, is_ready: bool
) -> None:
    """Triton's answer must raise no error: it would end the connection to Triton, which all clients share."""
    triton, inferences = stand_in()
    client = await Client(is_ready=is_ready, inferences=inferences).open()
    stream_id = client.begin(method)
    client.h2.send_data(stream_id, EMPTY)
    if end == "the call":
        client.h2.reset_stream(stream_id)
    else:
        client.h2.close_connection()
    client.transport.feed(client.h2.data_to_send())
    for call in list(triton.calls):
        call.on_message(b"")
        call.on_end(OK, "")
    assert inferences.running == 0


async def test_each_request_of_a_stream_has_a_call_of_its_own() -> None:
    """Triton 2.51 aborts at streams whose requests are for different kinds of models."""
    client, triton, stream_id = await _inference()
    for model in ("tensorrt_llm", "ensemble"):
        request = pb.ModelInferRequest(model_name=model).SerializeToString()
        client.h2.send_data(stream_id, prefixed(request), end_stream=model == "ensemble")
    await client.flush()
    assert [len(call.sent) for call in triton.calls] == [1, 1, 1]
    for call in list(triton.calls):
        assert "grpc-status" not in client.trailers(stream_id)
        call.on_message(_final())
        triton.finish(call)
        await client.flush()
    assert client.trailers(stream_id)["grpc-status"] == "0"
    assert (client.inferences.running, client.budget.held_bytes) == (0, 0)


async def test_a_request_counts_until_its_own_answer_begins() -> None:
    client, triton, stream_id = await _inference()
    request = pb.ModelInferRequest(model_name="tensorrt_llm", id="a" * 1000)
    client.h2.send_data(stream_id, prefixed(request.SerializeToString()))
    await client.flush()
    budget = client.inferences.budget
    triton.calls[0].on_message(_final())
    assert budget.held_bytes == len(triton.calls[1].sent[0]) > 1000
    triton.calls[1].on_message(_final())
    assert budget.held_bytes == 0


async def test_a_request_that_is_reset_before_its_turn_never_reaches_triton() -> None:
    """Triton takes memory for each call, also for one that ends at once."""
    client, triton, _ = await _inference()
    request = prefixed(pb.ModelInferRequest(model_name="tensorrt_llm").SerializeToString())
    for _ in range(20):
        stream_id = client.begin("ModelStreamInfer")
        client.h2.send_data(stream_id, request)
        client.h2.reset_stream(stream_id)
    await client.flush()
    assert len(triton.calls) == client.inferences.running == 1
    assert not client.is_closed


async def test_a_request_for_an_unknown_model_gets_its_error_and_the_stream_goes_on() -> None:
    client, triton, stream_id = await _inference()
    client.h2.send_data(stream_id, EMPTY)
    await client.flush()
    (answer,) = (each for each in client.events if isinstance(each, DataReceived))
    assert "E1108" in pb.ModelStreamInferResponse.FromString(answer.data[5:]).error_message
    assert len(triton.calls) == 1
    assert "grpc-status" not in client.trailers(stream_id)


async def test_a_thousand_calls_whose_windows_are_opened_are_no_flood() -> None:
    """Open them as gRPC's C++ library does."""
    client, _, _ = await _inference()
    client.connection._since_s = math.inf  # All happens within one second.
    client.inferences.max_requests = 10_000
    client.h2.remote_settings.max_concurrent_streams = 2000
    client.h2.remote_settings.acknowledge()
    for _ in range(900):
        stream_id = client.begin("ModelInfer")
        client.h2.increment_flow_control_window(1000, stream_id)
        client.h2.increment_flow_control_window(1000)
        request = pb.ModelInferRequest(model_name="tensorrt_llm").SerializeToString()
        client.h2.send_data(stream_id, prefixed(request), end_stream=True)
        await client.flush()
    assert not client.is_closed
    assert client.inferences.running > 900


async def test_a_stream_whose_requests_are_all_refused_is_ended() -> None:
    client, triton, stream_id = await _inference()
    client.h2.send_data(stream_id, EMPTY * 3000)
    await client.flush()
    trailers = client.trailers(stream_id)
    assert trailers["grpc-status"] == str(RESOURCE_EXHAUSTED)
    assert "the last 100 requests" in trailers["grpc-message"]
    assert not client.is_closed
    triton.finish(triton.calls[0])
    assert (client.inferences.running, client.budget.held_bytes) == (0, 0)


async def test_a_stream_without_a_request_ends_well() -> None:
    client = await Client(inferences=stand_in()[1]).open()
    assert await client.call("ModelStreamInfer", b"") == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "0",
    }


def _final() -> bytes:
    response = pb.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())
