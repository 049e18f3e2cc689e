"""Requests of one connection of HTTP/1.1 are answered in order and in time."""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.grpc import service_pb2 as pb

from runner.settings.api_keys import APIKeys
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.http import connection as http_connection
from runner.triton_server.front.http.answers import Answer
from runner.triton_server.front.http.server import HTTPServer
from runner.triton_server.grpc_wire import OK
from tests.fuzz.front_connections import UnreachableTriton
from tests.fuzz.triton_standin import stand_in
from tests.hostile import request
from tests.runner.triton_server.front.http.client import MAX_HELD_BYTES, Client, run, settle
from tests.runner.triton_server.transport import check_freed_when_lost


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
        assert (await client.send(b"HEAD / HTTP/1.1\r\nHost:\r\n\r\n")).endswith(b"content-length: 8\r\n\r\n")
        refused = Client()
        assert (await refused.send(b"HEAD /refused HTTP/1.1\r\nHost: a\r\n\r\n")).endswith(b"\r\n\r\n")
        old = Client(answers=False)
        await old.send(b"GET / HTTP/1.0\r\n\r\n")
        old.connection.begin(200, b"text/event-stream")
        old.connection.write(b"data: a\n\n")
        old.connection.end()
        assert old.transport.sent.endswith(b"\r\n\r\ndata: a\n\n")
        assert old.transport.is_closing()

    run(work)


def test_of_a_request_that_triton_has_only_that_is_held() -> None:
    async def work() -> None:
        triton, inferences = stand_in()
        server = HTTPServer(inferences, UnreachableTriton(), APIKeys(()), lambda: True, is_managed=False)
        client = Client(inferences.budget, answers=False)
        client.connection._handle = server.handle
        await client.send(request("/v2/models/tensorrt_llm/generate", b"{" + b" " * 3000 + b"}"))
        assert inferences.budget.held_bytes == len(triton.calls[0].sent[0]) < 1000
        client.transport.lose()
        triton.finish(triton.calls[0])
        assert (inferences.running, inferences.budget.held_bytes) == (0, 0)

    run(work)


def test_an_answer_that_can_not_be_written_as_json_is_an_error_of_its_own() -> None:
    async def work() -> None:
        client = Client(answers=False)
        await client.send(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = Answer(client.connection)
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
            await each.send(b"GET / HTTP/1.1\r\nHost:\r\n" + begun + b"Authorization: " + b"a" * 12_000, 1000)
        assert MAX_HELD_BYTES - 13_000 < budget.held_bytes <= MAX_HELD_BYTES
        monkeypatch.setattr(http_connection, "_HEAD_TIMEOUT_S", 0.01)
        late = Client(budget)
        await late.send(b"GET / HT")
        await asyncio.sleep(0.1)
        assert late.transport.is_closing()

    run(work)


@pytest.mark.slow
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
