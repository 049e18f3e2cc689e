"""Requests of HTTP/1.1 in any pieces, and what is none or exceeds a bound."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.hostile import chunked, request
from tests.runner.http.client import MAX_BODY_BYTES, Client, settle

bodies = st.one_of(st.binary(max_size=300), st.integers(0, MAX_BODY_BYTES).map(lambda size: b"a" * size))
plain = st.builds(request, st.sampled_from(["/v2", "/v2/models/a/infer", "/" + "p" * 2000]), bodies)
in_chunks = st.builds(
    chunked, st.just("/v2/models/b/generate"), st.lists(st.binary(min_size=1, max_size=200), max_size=20)
)


@given(st.lists(plain | in_chunks, min_size=1, max_size=8), st.data())
def test_every_split_into_reads_gives_the_same_requests(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(messages)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)) | {0, len(stream)})

    async def work() -> None:
        whole, split = Client(), Client()
        await whole.send(stream, piece_bytes=1 << 14)
        for start, end in pairwise(cuts):
            await split.send(stream[start:end])
        assert len(whole.seen) == len(messages)
        assert whole.seen == split.seen
        assert whole.statuses() == split.statuses() == [200] * len(messages)

    asyncio.run(work())


@given(st.binary(max_size=300), st.integers(1, 40))
def test_anything_else_is_refused_in_one_way(data: bytes, piece_bytes: int) -> None:
    async def work() -> None:
        client, split = Client(), Client()
        await client.send(b"G" + data)
        await split.send(b"G" + data, piece_bytes)
        assert client.seen == split.seen
        assert client.statuses() == split.statuses()
        assert set(client.statuses()) <= {200, 400, 505}

    asyncio.run(work())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (request("/", b"").replace(b"h: 0", b"h: -1"), 400),
        (request("/", b"").replace(b"h: 0", b"h: 1_0"), 400),
        (request("/", b"").replace(b"h: 0", b"h: " + b"9" * 40), 400),
        (chunked("/", [])[:-5] + b"fffffffffffffffff\r\n", 400),
        (chunked("/", [])[:-5] + b"5;" + b"a" * (4 * MAX_BODY_BYTES), 413),
        (chunked("/", [b"{}"])[:-2] + b"X: a\r\n" * MAX_BODY_BYTES, 413),
        (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 60_000, 431),
        (b"\r\n" * 60_000, 431),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 700, 1 << 14])
async def test_what_exceeds_a_bound_is_answered_and_nothing_after_it_is_read(
    data: bytes, status: int, piece_bytes: int
) -> None:
    client = Client()
    if piece_bytes > 1 or len(data) < 50_000:
        await client.send(data, piece_bytes)
        assert client.statuses() == [status]
        await client.send(request("/", b"{}"))
        assert client.seen == []
        assert b"connection: close" in client.transport.sent
        assert client.transport.has_ended
    if not client.transport.is_lost:
        client.transport.lose()
    assert client.registry._buffered_bytes == 0


async def test_input_that_is_much_work_is_read_in_turn() -> None:
    data = chunked("/", [b"a"] * 300)
    client = Client()
    client.transport.feed(data[:1500])
    assert not client.transport.is_reading()
    for _ in range(10_000):
        if not client.transport.is_reading():
            await asyncio.sleep(0.001)
    await client.send(data[1500:])
    assert client.statuses() == [200]


async def test_too_many_pipelined_requests_are_refused_and_those_before_are_answered_in_order() -> None:
    go_on = asyncio.Semaphore(0)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.acquire()
        await Response(scope["path"])(scope, receive, send)

    client = Client(application)
    await client.send(b"".join(request(f"/{number}", b"") for number in range(8)))
    for number in range(8):
        go_on.release()
        await settle()
        assert client.statuses() == [200] * (number + 1)
        assert client.transport.sent.endswith(b"/%d" % number)
    await client.send(request("/v2", b"") * 1000)
    for _ in range(20):
        go_on.release()
    await settle()
    assert 8 < len(client.statuses()) < 20
    assert client.transport.is_closing()


@pytest.mark.parametrize(
    ("data", "closes"),
    [
        (request("/", b"{}"), False),
        (request("/", b"{}", "Connection: close"), True),
        (request("/", b"{}").replace(b"1.1", b"1.0"), True),
        (request("/", b"{}", "Connection: keep-alive").replace(b"1.1", b"1.0"), False),
        (request("/", b"", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"), False),
        (request("/", b"", "Connection: Upgrade", "Upgrade: websocket"), False),
    ],
)
async def test_the_connection_stays_open_as_the_client_asks(data: bytes, *, closes: bool) -> None:
    """Each request of a connection decides for itself, whatever follows it."""
    client = Client()
    await client.send(data)
    assert client.statuses() == [200]
    assert client.transport.is_closing() == closes
    if not closes:
        await client.send(data + request("/", b"", "Connection: close"))
        assert client.statuses() == [200, 200, 200]
        assert client.transport.sent.count(b"connection: close") == 1


async def test_a_pipelined_request_waits_until_its_client_has_read_the_answers_before() -> None:
    client = Client()
    client.connection.pause_writing()
    await client.send(request("/a", b"{}"))
    assert client.seen == []
    client.connection.resume_writing()
    await settle()
    assert client.statuses() == [200]


@pytest.mark.parametrize("begun", [b"", b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], ids=["head", "trailer"])
async def test_heads_and_trailers_that_arrive_count(begun: bytes) -> None:
    client = Client()
    data = b"GET / HTTP/1.1\r\nHost:\r\n" + begun + b"Authorization: " + b"a" * 12_000
    await client.send(data, 1000)
    assert client.registry._buffered_bytes == len(data)
    client.transport.lose()
    assert client.registry._buffered_bytes == 0
