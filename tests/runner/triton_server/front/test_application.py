"""Requests of Triton's HTTP API on one connection: what is held of them, and answers that fail."""

import asyncio
import gc

import pytest
from tritonclient.grpc import service_pb2 as pb

from runner.settings.api_keys import APIKeys
from runner.triton_server.front.http.answers import word_refusal
from runner.triton_server.front.http.application import Application
from tests.fuzz.front_connections import UnreachableTriton
from tests.fuzz.triton_standin import StandInTriton, stand_in
from tests.hostile import chunked, request
from tests.runner.http.client import MAX_BODY_BYTES, Client, settle

GENERATE = "/v2/models/tensorrt_llm/generate"


class Front(Client):
    """A client of the front of a stand-in of Triton."""

    def __init__(self, *keys: str) -> None:
        self.triton: StandInTriton
        self.triton, self.inferences = stand_in()
        application = Application(
            self.inferences, UnreachableTriton(), APIKeys(keys), lambda: True, MAX_BODY_BYTES
        )
        super().__init__(application, word_refusal)

    def respond(self, *outputs: str, is_final: bool = False) -> None:
        message = pb.ModelStreamInferResponse()
        message.infer_response.parameters["triton_final_response"].bool_param = is_final
        for each in outputs:
            message.infer_response.outputs.add(name="a", datatype=each, shape=[1])
            message.infer_response.raw_output_contents.append(b"\0\0")
        self.triton.calls[0].on_message(message.SerializeToString())


async def test_of_a_request_that_triton_has_only_that_is_held() -> None:
    front = Front()
    await front.send(request(GENERATE, b"{" + b" " * 3000 + b"}"))
    held = front.inferences.budget.held_bytes
    assert held == len(front.triton.calls[0].sent[0]) < 1000
    assert front.registry._buffered_bytes == 0
    front.transport.lose()
    await settle()
    front.triton.finish(front.triton.calls[0])
    assert (front.inferences.running, front.inferences.budget.held_bytes) == (0, 0)


async def test_an_answer_that_can_not_be_written_as_json_is_an_error_of_its_own() -> None:
    front = Front()
    await front.send(request(GENERATE, b"{}"))
    front.respond("BF16", is_final=True)
    front.triton.finish(front.triton.calls[0])
    await settle()
    assert front.statuses() == [500]
    assert not front.transport.is_closing()


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    front = Front()
    await front.send(request(f"{GENERATE}_stream", b"{}"))
    front.transport.is_read = False
    for _ in range(30_000):
        if not front.transport.is_lost:
            front.respond()
            await asyncio.sleep(0)
    assert front.transport.is_lost
    await settle()
    assert front.triton.calls[0].is_ignored


async def test_many_responses_at_once_are_one_answer_of_generate() -> None:
    front = Front()
    await front.send(request(GENERATE, b"{}"))
    for _ in range(4):
        front.respond()
        await asyncio.sleep(0)
    assert len(front.statuses()) == 1


async def test_work_for_a_client_that_leaves_at_once_is_never_begun(recwarn: pytest.WarningsRecorder) -> None:
    front = Front()
    front.transport.feed(request("/v2", b"", method="GET"))
    front.transport.lose()
    await settle()
    assert not front.transport.sent
    gc.collect()
    assert [*recwarn] == []


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(GENERATE, b"").replace(b"h: 0", b"h: 99999999999"), 413),
        (chunked(GENERATE, [b"a" * 1000] * 61), 413),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000, 431),
    ],
)
async def test_a_request_that_is_too_large_is_refused(data: bytes, status: int) -> None:
    front = Front()
    answer = await front.send(data)
    assert front.statuses() == [status]
    assert b"E1110" in answer
    assert front.triton.calls == []


async def test_a_key_is_checked_before_the_body_is_received() -> None:
    front = Front("the-key")
    head = request(GENERATE, b"{}", "Expect: 100-continue")[:-2]
    await front.send(head)
    assert front.statuses() == [401]
    assert front.transport.is_closing()  # The body may follow or not.


async def test_a_stream_ends_with_the_error_of_its_inference() -> None:
    front = Front()
    await front.send(request(f"{GENERATE}_stream", b"{}"))
    front.respond()
    front.triton.disconnect()
    await settle()
    assert front.statuses() == [200]
    assert b'data: {"error":"Triton has ended"}\n\n\r\n0\r\n\r\n' in front.transport.sent
