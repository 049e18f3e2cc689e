"""The engine slot in a real Triton, asked over HTTP and gRPC as NVIDIA's backend would be."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
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
    """Return what a stream's events hold; Triton writes a tensor of one element as a number."""
    pieces = [event["output_ids"] for event in stream]
    return [token for piece in pieces for token in (piece if isinstance(piece, list) else [piece])]


def test_each_row_of_a_batch_comes_over_grpc_with_the_outputs_that_are_asked_for_alone(
    triton: TritonUnderTest,
) -> None:
    """What is not asked for Triton frees while we send: nothing may break by it."""
    responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = grpcclient.InferenceServerClient(url=f"{HOST}:{triton.grpc_port}")
    client.start_stream(callback=lambda result, error: responses.put((result, error)))
    prompts = [PROMPT, [5, 6, 7]]
    inputs = []
    for name, array in {
        "input_ids": np.array(prompts, np.int32),
        "request_output_len": np.full((2, 1), 4, np.int32),
        "streaming": np.full((2, 1), True),
    }.items():
        inputs.append(grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    asked = [grpcclient.InferRequestedOutput(name) for name in ("output_ids", "batch_index")]
    for _ in range(20):
        client.async_stream_infer("tensorrt_llm", inputs, outputs=asked, enable_empty_final_response=True)
    received: list[list[int]] = [[], []]
    last = 0
    while last < 20:
        result, error = responses.get(timeout=300)
        assert error is None, error
        response = result.get_response()
        assert {output.name for output in response.outputs} == {"output_ids", "batch_index"}
        received[result.as_numpy("batch_index")[0, 0]] += result.as_numpy("output_ids")[0, 0].tolist()
        last += response.parameters["triton_final_response"].bool_param
    for prompt, tokens in zip(prompts, received, strict=True):
        assert sorted(tokens) == sorted([*prompt, prompt[0]] * 20)
    client.stop_stream(cancel_requests=True)
    client.close()


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
