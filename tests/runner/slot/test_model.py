"""The engine slot in a real Triton, asked over HTTP and gRPC as NVIDIA's backend would be."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from tests.runner.grpc_stream import GrpcStream
from tests.runner.servers import SLOT, TritonUnderTest, wait_until

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
    prompts = [PROMPT, [5, 6, 7]]
    received: list[list[int]] = [[], []]
    with closing(GrpcStream(triton.grpc_port)) as stream:
        for _ in range(20):
            stream.send(
                "tensorrt_llm",
                outputs=["output_ids", "batch_index"],
                input_ids=np.array(prompts, np.int32),
                request_output_len=np.full((2, 1), 4, np.int32),
                streaming=np.full((2, 1), True),
            )
        last = 0
        while last < 20:
            outputs, is_last = stream.receive()
            assert outputs.keys() == {"output_ids", "batch_index"}
            received[outputs["batch_index"][0, 0]] += outputs["output_ids"][0, 0].tolist()
            last += is_last
    for prompt, tokens in zip(prompts, received, strict=True):
        assert sorted(tokens) == sorted([*prompt, prompt[0]] * 20)


def test_a_stream_gives_each_token_once_and_says_at_the_end_why(triton: TritonUnderTest) -> None:
    stream = triton.stream(STREAM, stream_of(PROMPT, 40))
    assert tokens(stream) == [PROMPT[index % 3] for index in range(40)]
    assert len(stream) > 10
    assert [event.get("finish_reason") for event in stream] == [None] * (len(stream) - 1) + ["length"]
    assert all(event["sequence_length"] == len(tokens([event])) for event in stream)


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


def test_a_stream_that_ends_by_itself_is_never_counted_as_cancelled(triton: TritonUnderTest) -> None:
    wait_until(lambda: triton.counters.is_settled)
    cancels = triton.counters["slot_cancel_requests_total"]

    async def read(count: int) -> str | None:
        asked = GenerationRequest("Once upon", count, 0, (), Sampling(temperature=0))
        ended = triton.service.generate(asked)
        assert [text async for text in ended.text()]
        return ended.finish_reason

    async def read_many() -> list[str | None]:
        return await asyncio.gather(*(read(1 + number % 3) for number in range(90)))

    assert triton.run(read_many()) == ["length"] * 90
    wait_until(lambda: triton.counters.is_settled)
    assert triton.counters["slot_cancel_requests_total"] == cancels
