"""The engine slot in a real Triton, asked over HTTP and gRPC as NVIDIA's backend would be."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

from tests.runner.servers import HOST, SLOT, TritonUnderTest, events, wait_until

pytestmark = pytest.mark.servers

PROMPT = [10, 11, 12]
STREAM = f"{SLOT}/generate_stream"


def stream_of(ids: list[int], count: int) -> dict[str, object]:
    lengths = {"input_lengths": len(ids), "request_output_len": count}
    return {"input_ids": ids, "streaming": True, **lengths}


def tokens(stream: list[dict[str, Any]]) -> list[int]:
    """What a stream's events hold; Triton writes a tensor of one element as a number."""
    pieces = [event["output_ids"] for event in stream]
    return [token for piece in pieces for token in (piece if isinstance(piece, list) else [piece])]


class GrpcStream:
    """A gRPC stream to Triton: requests go in as arrays, responses come out in order."""

    def __init__(self, port: int) -> None:
        self._client = grpcclient.InferenceServerClient(url=f"{HOST}:{port}")
        self._responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._responses.put((result, error)))

    def send(
        self,
        model: str,
        *,
        request_id: str = "",
        outputs: Sequence[str] = (),
        **tensors: npt.NDArray[Any],
    ) -> None:
        """``outputs`` are those asked for; none: all."""
        inputs = []
        for name, array in tensors.items():
            tensor = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        self._client.async_stream_infer(
            model,
            inputs,
            outputs=[grpcclient.InferRequestedOutput(name) for name in outputs] or None,
            request_id=request_id,
            enable_empty_final_response=True,
        )

    def receive(self) -> tuple[dict[str, Any], bool]:
        """Outputs of the next response, and whether it is the last."""
        result, error = self._responses.get(timeout=300)
        if error is not None:
            raise error
        response = result.get_response()
        outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
        return outputs, response.parameters["triton_final_response"].bool_param

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@pytest.fixture
def grpc_stream(triton: TritonUnderTest) -> Iterator[GrpcStream]:
    stream = GrpcStream(triton.grpc_port)
    yield stream
    stream.close()


def test_generate_answers_at_once_with_all_tokens(triton: TritonUnderTest) -> None:
    answer = triton.generate_ids(PROMPT, 7).json()
    assert answer["output_ids"] == [10, 11, 12, 10, 11, 12, 10]
    assert answer["sequence_length"] == 7
    assert answer["finish_reason"] == "length"


def test_a_stream_gives_each_token_once_and_says_at_the_end_why(triton: TritonUnderTest) -> None:
    stream = triton.stream(STREAM, stream_of(PROMPT, 40))
    assert tokens(stream) == [PROMPT[index % 3] for index in range(40)]
    assert len(stream) > 10
    assert [event.get("finish_reason") for event in stream] == [None] * (len(stream) - 1) + ["length"]
    assert all(event["sequence_length"] == len(tokens([event])) for event in stream)


def test_each_row_of_a_batch_has_its_index_and_its_content(grpc_stream: GrpcStream) -> None:
    rows = np.array([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]], np.int32)
    lengths = np.array([[4], [2], [3]], np.int32)
    counts = np.array([[9], [5], [12]], np.int32)
    grpc_stream.send(
        "tensorrt_llm",
        input_ids=rows,
        input_lengths=lengths,
        request_output_len=counts,
        streaming=np.full((3, 1), True),
    )
    received: dict[int, list[int]] = {0: [], 1: [], 2: []}
    reasons: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    is_last = False
    while not is_last:
        outputs, is_last = grpc_stream.receive()
        index = int(outputs["batch_index"][0, 0])
        received[index] += outputs["output_ids"][0, 0].tolist()
        assert outputs["output_ids"].shape == (1, 1, int(outputs["sequence_length"][0, 0]))
        reasons[index] += outputs["finish_reason"][0].tolist() if "finish_reason" in outputs else []
    for index in range(3):
        prompt = rows[index, : lengths[index, 0]].tolist()
        assert received[index] == [prompt[at % len(prompt)] for at in range(counts[index, 0])]
        assert reasons[index] == [b"length"]


def test_only_the_outputs_that_are_asked_for_are_sent(grpc_stream: GrpcStream) -> None:
    """What is not asked for Triton frees while we send: nothing may break by it."""
    for _ in range(20):
        grpc_stream.send(
            "tensorrt_llm",
            outputs=["output_ids"],
            input_ids=np.array([PROMPT, PROMPT], np.int32),
            request_output_len=np.array([[4], [4]], np.int32),
            streaming=np.full((2, 1), True),
        )
    received: list[int] = []
    last = 0
    while last < 20:
        outputs, is_last = grpc_stream.receive()
        assert set(outputs) == {"output_ids"}
        received += outputs["output_ids"][0, 0].tolist()
        last += is_last
    assert sorted(received) == sorted([10, 11, 12, 10] * 40)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"request_output_len": 0}, "E1103"),
        ({"input_ids": [1] * 4096}, "E1002"),
        ({"beam_width": 4}, "E1104"),
        ({"input_ids": "text"}, None),
        ({"input_ids": [[1, 2], [3, 4]]}, None),
    ],
)
@pytest.mark.parametrize("form", ["generate", "generate_stream"])
def test_a_wrong_request_is_told_its_code_or_triton_s_own_error_and_the_next_is_served(
    triton: TritonUnderTest, form: str, wrong: dict[str, object], code: str | None
) -> None:
    body = {"input_ids": PROMPT, "request_output_len": 3, "streaming": form == "generate_stream", **wrong}
    response = triton.post(f"{SLOT}/{form}", body)
    assert response.status_code in ((400,) if code else (400, 500))
    document = events(response.text)[0] if code and form == "generate_stream" else response.json()
    assert document["error"].startswith(code or "")
    assert triton.generate_ids(PROMPT, 3).json()["output_ids"] == PROMPT


def test_many_short_requests_end_well_while_the_slot_looks_for_cancelled_ones(
    triton: TritonUnderTest,
) -> None:
    """Triton crashes if it is asked about a request that has ended: the slot must not."""
    restarts = triton.service.stack.triton.restarts

    def one(number: int) -> int:
        return triton.generate_ids([5, 6], 1 + number % 3).status_code

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(one, range(1000))) == {200}
    assert triton.service.stack.triton.restarts == restarts
    wait_until(lambda: triton.counters.is_settled)


def test_the_stop_tensor_ends_the_requests_of_its_id(
    triton: TritonUnderTest, grpc_stream: GrpcStream
) -> None:
    cancelled = triton.counters.cancelled
    long: dict[str, Any] = {
        "input_ids": np.array([PROMPT], np.int32),
        "request_output_len": np.array([[4000]], np.int32),
    }
    grpc_stream.send("tensorrt_llm", request_id="mine", streaming=np.array([[True]]), **long)
    grpc_stream.receive()
    stop = GrpcStream(triton.grpc_port)
    stop.send("tensorrt_llm", request_id="another", stop=np.array([[True]]), **long)
    outputs, is_last = stop.receive()
    assert (outputs["finish_reason"].tolist(), is_last) == ([[b"stop"]], True)
    assert set(outputs) == {"finish_reason"}
    assert triton.counters.cancelled == cancelled
    stop.send("tensorrt_llm", request_id="mine", stop=np.array([[True]]), **long)
    stop.receive()
    stop.close()
    triton.counters.wait_for_cancelled(cancelled + 1)
