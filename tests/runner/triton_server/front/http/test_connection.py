"""Requests of HTTP/1.1, fed to a connection by hand: no socket, no process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from errors.triton_front import RequestTooLarge
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.connections import Connections
from runner.triton_server.front.http import connection as http_connection
from runner.triton_server.front.http.answers import Answer
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.http.requests import Request
from runner.triton_server.grpc_wire import OK
from tests.hostile import chunked, request
from tests.runner.triton_server.transport import Transport, check_freed_when_lost

MAX_BODY_BYTES = 60_000
MAX_HELD_BYTES = 160_000


class Client:
    """One connection to a server that keeps what it was given, and answers if ``answers``."""

    def __init__(self, budget: Budget | None = None, *, answers: bool = True) -> None:
        self.requests: list[Request] = []
        self.budget = budget or Budget(MAX_HELD_BYTES)
        self.connections: Connections[HTTPConnection] = Connections()
        self._answers = answers
        self.connection = HTTPConnection(
            self._handle, self._check, self.connections, self.budget, MAX_BODY_BYTES
        )
        self.transport = Transport(self.connection)

    async def send(self, data: bytes, piece_bytes: int = 1 << 14) -> bytes:
        """All that was answered so far."""
        for at in range(0, len(data), piece_bytes):
            self.transport.feed(data[at : at + piece_bytes])
            await asyncio.sleep(0)
        await settle()
        return bytes(self.transport.sent)

    @property
    def seen(self) -> list[tuple[str, bytes, bytes]]:
        return [(each.method, each.target, bytes(each.body)) for each in self.requests]

    def statuses(self) -> list[int]:
        return [int(each[:3]) for each in bytes(self.transport.sent).split(b"HTTP/1.1 ")[1:]]

    def _handle(self, request: Request, connection: HTTPConnection) -> None:
        self.requests.append(request)
        if self._answers:
            connection.respond(200, b'{"a": 1}')

    def _check(self, request: Request) -> None:
        if request.target == b"/refused":
            raise RequestTooLarge(part="body", max_bytes=0, remedy="send less")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


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

    run(work)


@given(st.binary(max_size=300), st.integers(1, 40))
def test_anything_else_is_refused_in_one_way(data: bytes, piece_bytes: int) -> None:
    async def work() -> None:
        client, split = Client(), Client()
        await client.send(b"G" + data)
        await split.send(b"G" + data, piece_bytes)
        assert client.seen == split.seen
        assert client.statuses() == split.statuses()
        assert set(client.statuses()) <= {200, 400}

    run(work)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01" + b"\0" * 1000, 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (request("/", b"{}", "Transfer-Encoding: chunked"), 400),
        (request("/", b"{}", "Transfer-Encoding: gzip"), 400),
        (request("/", b"{}", "Content-Length: 5"), 400),
        (request("/", b"{}", "Connection: Upgrade", "Upgrade: websocket"), 400),
        (chunked("/", [b"{}"], "Connection: Upgrade", "Upgrade: h2c"), 400),
        (request("/", b"").replace(b"h: 0", b"h: -1"), 400),
        (request("/", b"").replace(b"h: 0", b"h: 1_0"), 400),
        (request("/", b"").replace(b"h: 0", b"h: " + b"9" * 40), 400),
        (request("/", b"").replace(b"h: 0", b"h: 99999999999"), 413),
        (request("/", b"a" * (MAX_BODY_BYTES + 1)), 413),
        (chunked("/", [b"a" * 1000] * 61), 413),
        (chunked("/", [])[:-5] + b"fffffffffffffffff\r\n", 400),
        (chunked("/", [])[:-5] + b"5;" + b"a" * (4 * MAX_BODY_BYTES), 413),
        (chunked("/", [b"{}"])[:-2] + b"X: a\r\n" * MAX_BODY_BYTES, 413),
        (request("/refused", b"{}"), 413),
        (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 60_000, 431),
        (b"\r\n" * 60_000, 431),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 700, 1 << 14])
def test_what_exceeds_a_bound_is_answered_and_nothing_after_it_is_read(
    data: bytes, status: int, piece_bytes: int
) -> None:
    async def work() -> None:
        client = Client()
        if piece_bytes > 1 or len(data) < 50_000:
            await client.send(data, piece_bytes)
            assert client.statuses() == [status]
            await client.send(request("/", b"{}"))
            assert client.seen == []
            assert b"connection: close" in client.transport.sent
            assert client.transport.has_ended
        client.transport.lose()
        assert client.budget.held_bytes == 0

    run(work)


def test_requests_before_a_bad_one_are_answered_first() -> None:
    async def work() -> None:
        for piece_bytes in (1, 1 << 14):
            client = Client()
            await client.send(request("/a", b"{}") + b"GARBAGE\r\n\r\n", piece_bytes)
            assert client.statuses() == [200, 400]

    run(work)


def test_pipelined_requests_are_answered_in_order_and_too_many_are_refused() -> None:
    async def work() -> None:
        client = Client(answers=False)
        paths = [f"/{number}" for number in range(8)]
        await client.send(b"".join(request(path, b"") for path in paths))
        for number, _ in enumerate(paths):
            assert len(client.requests) == number + 1
            client.connection.respond(200, b"{}")
            await settle()
        assert [target.decode() for _, target, _ in client.seen] == paths
        await client.send(request("/v2", b"") * 10_000)
        for _ in range(8):
            client.connection.respond(200, b"{}")
            await settle()
        assert client.statuses()[-1] == 400
        assert len(client.requests) == 16

    run(work)


def test_a_client_that_sends_more_while_it_waits_is_noticed_when_it_disconnects() -> None:
    async def work() -> None:
        client = Client(answers=False)
        gone: list[bool] = []
        await client.send(request("/a", b"") + request("/b", b"x" * 100)[:-50])
        client.connection.on_disconnect = lambda: gone.append(True)
        assert client.transport.is_reading()
        client.transport.lose()
        assert gone == [True]
        assert client.budget.held_bytes == 0

    run(work)


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
def test_the_connection_stays_open_as_the_client_asks(data: bytes, *, closes: bool) -> None:
    """Each request of a connection decides for itself, whatever follows it."""

    async def work() -> None:
        client = Client()
        await client.send(data)
        assert client.statuses() == [200]
        assert client.transport.is_closing() == closes
        if not closes:
            await client.send(data + request("/", b"", "Connection: close"))
            assert client.statuses() == [200, 200, 200]
            assert client.transport.sent.count(b"connection: close") == 1

    run(work)


def test_a_head_has_no_body_and_a_stream_to_http_1_0_no_chunks() -> None:
    async def work() -> None:
        client = Client()
        assert (await client.send(b"HEAD / HTTP/1.1\r\n\r\n")).endswith(b"content-length: 8\r\n\r\n")
        refused = Client()
        assert (await refused.send(b"HEAD /refused HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        old = Client(answers=False)
        await old.send(b"GET / HTTP/1.0\r\n\r\n")
        old.connection.begin(200, b"text/event-stream")
        old.connection.write(b"data: a\n\n")
        old.connection.end()
        assert old.transport.sent.endswith(b"\r\n\r\ndata: a\n\n")
        assert old.transport.is_closing()

    run(work)


def test_an_answer_that_can_not_be_written_as_json_is_an_error_of_its_own() -> None:
    async def work() -> None:
        client = Client(answers=False)
        await client.send(b"POST / HTTP/1.1\r\n\r\n")
        answer = Answer(client.connection, client.requests[0])
        message = pb.ModelStreamInferResponse()
        message.infer_response.outputs.add(name="a", datatype="BF16", shape=[1])
        message.infer_response.raw_output_contents.append(b"\0\0")
        answer.receive(message.SerializeToString())
        answer.end(OK, "")
        assert client.statuses() == [500]
        assert client.connection.is_idle

    run(work)


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    async def work() -> None:
        client = Client(answers=False)
        gone: list[bool] = []
        await client.send(request("/", b""))
        client.connection.on_disconnect = lambda: gone.append(True)
        client.transport.is_read = False
        client.connection.begin(200, b"text/event-stream")
        for _ in range(3000):
            client.connection.write(b"a" * 1000)
        assert gone == [True]

    run(work)


def test_the_request_with_most_bytes_gives_way_when_all_together_hold_too_much() -> None:
    async def work() -> None:
        budget = Budget(MAX_HELD_BYTES)
        clients = [Client(budget) for _ in range(4)]
        for number, each in enumerate(clients):
            await each.send(request("/", b"a" * 50_000)[: -5000 - number])
        assert sorted(each.statuses() for each in clients) == [[], [], [], [503]]
        assert budget.held_bytes <= MAX_HELD_BYTES
        await clients[3].send(b"a" * 5003)
        assert clients[3].statuses() == [200]

    run(work)


@pytest.mark.parametrize("begun", [b"", b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], ids=["head", "trailer"])
def test_heads_and_trailers_that_arrive_slowly_count_and_end_in_time(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        budget = Budget(MAX_HELD_BYTES)
        clients = [Client(budget) for _ in range(20)]
        for each in clients:
            await each.send(b"GET / HTTP/1.1\r\n" + begun + b"Authorization: " + b"a" * 12_000, 1000)
        assert MAX_HELD_BYTES - 13_000 < budget.held_bytes <= MAX_HELD_BYTES
        monkeypatch.setattr(http_connection, "_HEAD_TIMEOUT_S", 0.01)
        late = Client(budget)
        await late.send(b"GET / HT")
        await asyncio.sleep(0.1)
        assert late.transport.is_closing()

    run(work)


@pytest.mark.parametrize("data", [chunked("/", [b"a"] * 300), request("/", b"", *["a:"] * 300)])
def test_input_that_is_much_work_is_read_in_turn(data: bytes) -> None:
    async def work() -> None:
        client = Client()
        client.transport.feed(data[:1500])
        assert not client.transport.is_reading()
        for _ in range(10_000):
            if not client.transport.is_reading():
                await asyncio.sleep(0.001)
        await client.send(data[1500:])
        assert client.statuses() == [200]

    run(work)


def test_a_client_that_never_reads_its_last_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(http_connection, "_READ_TIMEOUT_S", 1.0)
        client = Client()
        client.transport.is_read = False
        await client.send(request("/", b"", "Connection: close"))
        assert client.transport.is_closing()
        assert not client.transport.is_lost
        while not client.transport.is_lost:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    run(work)


def test_while_a_request_is_answered_no_time_runs_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(http_connection, "_HEAD_TIMEOUT_S", 0.01)
        monkeypatch.setattr(http_connection, "_BODY_TIMEOUT_S", 0.05)
        client = Client(answers=False)
        await client.send(request("/a", b"") + request("/b", b"x" * 100)[:-50])
        await asyncio.sleep(0.2)
        assert not client.transport.is_closing()
        client.connection.respond(200, b"{}")
        await asyncio.sleep(0.2)
        assert client.transport.is_closing()

    run(work)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 9000,
        b"POST /v2 HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",
        request("/v2", b"{}"),
        b"\0" * 99,
    ],
)
def test_a_connection_that_is_lost_is_freed_at_once(sent: bytes) -> None:
    async def work() -> None:
        client = Client(answers=False)
        await client.send(sent)
        await check_freed_when_lost(client)

    run(work)
