"""A client that goes away frees its sequence in the engine, by the slot's own count.

How long that took is printed: 0.05 to 0.15 s here, and nothing a test on a busy machine could decide by.
"""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from tests.runner.servers import HOST, SLOT, TritonUnderTest, wait_until

pytestmark = pytest.mark.servers

LONG = {"input_ids": [1, 2, 3], "request_output_len": 4000, "streaming": True}


def open_stream(triton: TritonUnderTest, body: dict[str, object]) -> socket.socket:
    """Return a connection on which a stream has begun to arrive."""
    connection = socket.create_connection((HOST, triton.http_port), timeout=300)
    content = json.dumps(body).encode()
    head = f"POST {SLOT}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    received = b""
    while b"output_ids" not in received:
        received += connection.recv(65536)
    return connection


def test_only_the_stream_that_was_closed_ends(triton: TritonUnderTest) -> None:
    cancelled = triton.counters.cancelled
    kept = open_stream(triton, LONG | {"request_output_len": 100})
    for _ in range(5):
        open_stream(triton, LONG).close()
    triton.counters.wait_for_cancelled(cancelled + 5)
    received = b""
    while b"finish_reason" not in received:
        received += kept.recv(65536)
    kept.close()
    assert b'"finish_reason":"length"' in received
    assert triton.counters.cancelled == cancelled + 5


def test_many_clients_that_leave_at_once_are_all_freed(triton: TritonUnderTest) -> None:
    cancelled = triton.counters.cancelled
    connections = [open_stream(triton, LONG) for _ in range(40)]
    wait_until(lambda: triton.counters.running >= 40)
    for connection in connections:
        connection.close()
    triton.counters.wait_for_cancelled(cancelled + 40)
    wait_until(lambda: triton.counters.is_settled)


def test_a_stream_that_ends_by_itself_is_never_counted_as_cancelled(triton: TritonUnderTest) -> None:
    wait_until(lambda: triton.counters.is_settled)
    cancels = triton.counters["slot_cancel_requests_total"]

    async def read(count: int) -> str | None:
        request = GenerationRequest("Once upon", count, 0, (), Sampling(temperature=0))
        ended = triton.service.generate(request)
        assert [text async for text in ended.text()]
        return ended.finish_reason

    async def read_many() -> list[str | None]:
        return await asyncio.gather(*(read(1 + number % 3) for number in range(90)))

    assert triton.run(read_many()) == ["length"] * 90
    wait_until(lambda: triton.counters.is_settled)
    assert triton.counters["slot_cancel_requests_total"] == cancels
