"""A client that goes away frees its sequence in the engine, by the slot's own count."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from tests.hostile import request
from tests.runner.servers import HOST, SLOT, TritonUnderTest, wait_until

pytestmark = pytest.mark.servers


def open_stream(triton: TritonUnderTest, count: int) -> socket.socket:
    """Return a connection on which a stream has begun to arrive."""
    connection = socket.create_connection((HOST, triton.http_port), timeout=300)
    body = {"input_ids": [1, 2, 3], "request_output_len": count, "streaming": True}
    connection.sendall(request(f"{SLOT}/generate_stream", json.dumps(body).encode()))
    received = b""
    while b"output_ids" not in received:
        received += connection.recv(65536)
    return connection


def test_only_the_streams_that_were_closed_end(triton: TritonUnderTest) -> None:
    cancelled = triton.counters.cancelled
    kept = open_stream(triton, 100)
    closed = [open_stream(triton, 4000) for _ in range(40)]
    for each in closed:
        each.close()
    triton.counters.wait_for_cancelled(cancelled + 40)
    received = b""
    while b"finish_reason" not in received:
        received += kept.recv(65536)
    kept.close()
    assert b'"finish_reason":"length"' in received
    wait_until(lambda: triton.counters.is_settled)
    assert triton.counters.cancelled == cancelled + 40


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
