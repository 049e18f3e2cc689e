"""Connections that make room, wait or are refused, by number, bytes and times. No test sleeps."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from errors.api import ReceivingTooMuch, RequestNotReceived, TooManyConnections
from errors.coded_error import CodedError
from runner.http import connections as module
from runner.http.connections import BUFFER_BYTES, Connections, Limits
from tests.runner.http.client import Client as HTTPClient
from tests.runner.http.client import settle
from tests.runner.triton_server.transport import check_freed_when_lost

MIB = 1 << 20
ROOM = 8 * MIB + BUFFER_BYTES


class Client:
    def __init__(self, registry: Connections) -> None:
        self.registry = registry
        self.buffered_bytes = 0
        self.is_held = False
        self.ends: list[type[CodedError] | None] = []
        registry.opened(self)

    def hold(self) -> None:
        self.is_held = True

    def resume(self) -> None:
        self.is_held = False

    def close_with(self, error: CodedError | None) -> None:
        self.ends.append(error if error is None else type(error))

    def abort(self) -> None:
        self.ends.append(None)

    def begins(self, num_bytes: int) -> Client:
        self.registry.request_began(self)
        self.registry.received(self, num_bytes)
        return self

    def sends(self, num_bytes: int) -> None:
        self.registry.received(self, num_bytes)

    def has_sent_all(self) -> None:
        self.registry.request_arrived(self)

    def is_answered(self) -> None:
        self.registry.response_ended(self)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def registry(clock: Clock) -> Connections:
    limits = Limits(
        max_connections=3,
        max_head_bytes=1000,
        max_body_bytes=8 * MIB,
        receive_timeout_s=60,
        idle_timeout_s=75,
    )
    return Connections(limits)


def test_a_connection_that_was_only_just_accepted_does_not_make_room_for_the_next(
    registry: Connections, clock: Clock
) -> None:
    first, *others = (Client(registry).begins(10) for _ in range(3))
    new, next_ = Client(registry), Client(registry)
    assert (first.ends, others[0].ends, new.ends, next_.ends) == ([None], [None], [], [])
    clock.now_s += 2
    assert Client(registry).ends == others[1].ends == []
    assert new.ends == [None]


def test_the_oldest_idle_connection_makes_room_then_the_request_that_began_first(
    registry: Connections, clock: Clock
) -> None:
    idle, slow, busy = Client(registry), Client(registry).begins(10), Client(registry).begins(10)
    clock.now_s += 2
    busy.has_sent_all()
    second = Client(registry).begins(10)
    assert (idle.ends, slow.ends) == ([None], [])
    third = Client(registry).begins(10)
    assert (slow.ends, second.ends) == ([None], [])
    for each in (second, third):
        each.has_sent_all()
    late = Client(registry)
    assert late.ends == [TooManyConnections]
    assert busy.ends == second.ends == third.ends == []


def test_a_refused_connection_makes_room_until_it_is_closed(registry: Connections, clock: Clock) -> None:
    busy, refused, arriving = (Client(registry).begins(10) for _ in range(3))
    busy.has_sent_all()
    registry.refused(refused)
    assert Client(registry).ends == arriving.ends == []
    assert refused.ends == [None]
    clock.now_s += 60
    registry.tick()
    assert arriving.ends == [RequestNotReceived]
    assert Client(registry).ends == busy.ends == []


def test_an_answered_connection_is_idle_again_and_idle_ones_end_after_their_time(
    registry: Connections, clock: Clock
) -> None:
    client = Client(registry).begins(10)
    client.has_sent_all()
    clock.now_s += 1000
    registry.tick()
    client.is_answered()
    clock.now_s += 70
    registry.tick()
    assert client.ends == []
    clock.now_s += 10
    registry.tick()
    assert client.ends == [None]


def test_a_request_that_does_not_arrive_in_time_is_refused(registry: Connections, clock: Clock) -> None:
    client = Client(registry).begins(10)
    for _ in range(59):
        clock.now_s += 1
        client.sends(1)
        registry.tick()
    assert client.ends == []
    clock.now_s += 1
    registry.tick()
    assert client.ends == [RequestNotReceived]


def test_large_requests_wait_while_there_is_no_room_and_small_ones_do_not(registry: Connections) -> None:
    first = Client(registry).begins(ROOM)
    first.has_sent_all()
    large, small = Client(registry).begins(MIB), Client(registry).begins(1000)
    assert (large.is_held, small.is_held) == (True, False)
    registry.release(first)
    assert not large.is_held
    assert first.ends == large.ends == small.ends == []


def test_slow_requests_make_room_for_fast_ones(registry: Connections, clock: Clock) -> None:
    slow = Client(registry).begins(ROOM // 100)
    clock.now_s += 10
    fast = Client(registry).begins(ROOM - MIB)
    clock.now_s += 0.3
    fast.sends(MIB // 2)
    fast.sends(MIB // 2)
    assert (slow.ends, fast.ends) == ([ReceivingTooMuch], [])
    fast.has_sent_all()
    assert not fast.is_held


def test_one_request_goes_on_where_all_wait_and_time_that_it_waited_does_not_make_it_slow(
    registry: Connections, clock: Clock
) -> None:
    clients = [Client(registry).begins(ROOM // 3) for _ in range(3)]
    assert not any(each.is_held for each in clients)
    clients[1].sends(MIB)
    assert [each.is_held for each in clients] == [False, True, False]
    clients[0].sends(MIB)
    clients[2].sends(MIB)
    assert all(each.is_held for each in clients)
    clock.now_s += 30
    registry.tick()
    assert [each.is_held for each in clients] == [True, False, True]
    assert all(each.ends == [] for each in clients)
    clients[1].sends(MIB)
    assert not clients[1].is_held
    clients[1].has_sent_all()
    registry.release(clients[1])
    assert not any(each.is_held for each in clients)


def test_nothing_is_left_of_connections_that_closed(registry: Connections, clock: Clock) -> None:
    for number in range(100):
        client = Client(registry).begins(number * MIB)
        if number % 2:
            client.has_sent_all()
        registry.closed(client)
        registry.closed(client)
        client.is_answered()
    clock.now_s += 1000
    registry.tick()
    large = Client(registry).begins(ROOM)
    assert not large.is_held
    assert large.ends == []


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Wait, read the body and wait for the disconnect, fail, or answer, by the path."""
    if scope["path"] == "/waiting":
        await asyncio.sleep(3600)
    if scope["path"] == "/watching":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    if scope["path"] == "/failing":
        raise ZeroDivisionError
    await Response()(scope, receive, send)


def get(*paths: str) -> bytes:
    return b"".join(f"GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in paths)


def end(client: HTTPClient) -> None:
    for task in client.registry.tasks:
        task.cancel()


async def test_a_connection_is_not_idle_while_a_pipelined_request_waits_for_its_answer(
    registry: Connections, clock: Clock
) -> None:
    client = HTTPClient(_answer, registry=registry)
    assert await client.send(get("", "waiting"))
    clock.now_s += 1000
    registry.tick()
    assert not client.transport.is_closing()
    end(client)


async def test_a_request_that_is_answered_before_it_arrived_leaves_an_idle_connection(
    registry: Connections, clock: Clock
) -> None:
    client = HTTPClient(_answer, registry=registry)
    head = get("").replace(b"GET", b"POST")[:-2]
    assert await client.send(head + b"Content-Length: 2\r\n\r\na")
    await client.send(b"b")
    clock.now_s += 76
    registry.tick()
    assert client.transport.is_closing()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET / HT",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["half a head", "half a body", "a malformed body"],
)
async def test_an_answer_goes_on_whatever_follows_its_request(
    registry: Connections, clock: Clock, begun: bytes
) -> None:
    is_end = asyncio.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await is_end.wait()
        await send({"type": "http.response.body", "body": b"last"})

    client = HTTPClient(answer, registry=registry)
    await client.send(get(""))
    await client.send(begun)
    clock.now_s += 61
    registry.tick()
    others = [HTTPClient(_answer, registry=registry) for _ in range(registry.limits.max_connections)]
    assert [each.transport.is_closing() for each in others] == [True, False, False]
    assert not client.transport.is_closing()
    is_end.set()
    await settle()
    assert b"5\r\nfirst\r\n4\r\nlast\r\n0\r\n\r\n" in client.transport.sent


async def test_an_evicted_connection_is_closed_although_its_client_reads_nothing(
    registry: Connections,
) -> None:
    clients = [HTTPClient(_answer, registry=registry) for _ in range(registry.limits.max_connections)]
    for each in clients:
        each.transport.is_read = False
        await each.send(get(""))
    HTTPClient(_answer, registry=registry)
    assert [each.transport.is_lost for each in clients] == [True, False, False]


async def test_a_pipelined_request_may_wait_for_a_100(registry: Connections) -> None:
    client = HTTPClient(registry=registry)
    head = get("b").replace(b"GET", b"POST")[:-2]
    await client.send(get("a") + head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert client.transport.sent.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    await client.send(b"{}")
    assert client.seen == [("GET", "/a", b""), ("POST", "/b", b"{}")]


async def test_a_client_that_pipelines_is_read_on_so_that_its_disconnect_is_noticed(
    registry: Connections,
) -> None:
    client = HTTPClient(_answer, registry=registry)
    await client.send(get("watching", "", "", "", "", ""))
    assert client.transport.is_reading()
    client.transport.lose()
    await asyncio.gather(*registry.tasks)
    assert client.transport.sent == b""


async def test_a_request_that_fails_unexpectedly_gets_an_answer_and_its_connection_is_closed(
    registry: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    client = HTTPClient(_answer, registry=registry)
    answer = await client.send(get("failing"))
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"E2602" in answer
    assert client.transport.is_closing()
    assert "ZeroDivisionError" in caplog.text


async def test_a_refused_request_that_waits_for_a_100_gets_none(
    registry: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    client = HTTPClient(_answer, registry=registry)
    head = get("watching").replace(b"GET", b"POST")[:-2]
    answer = await client.send(head + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"100 Continue" not in answer
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        get(""),
        get("waiting", ""),
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 900,
        b"POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab",
        b"\0" * 99,
    ],
    ids=["unused", "answered", "pipelined", "in its head", "in its body", "refused"],
)
async def test_a_connection_that_is_lost_is_freed_at_once(registry: Connections, sent: bytes) -> None:
    client = HTTPClient(_answer, registry=registry)
    await client.send(sent)
    end(client)
    await check_freed_when_lost(client)
