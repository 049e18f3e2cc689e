"""The load generator's HTTP client: framing however the bytes come, and servers that misbehave."""

import asyncio
import socket
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.response import MalformedResponse, Response, ResponseReader, events
from tests.scripted_server import Asked, ScriptedServer, Write, json_answer, stream_answer

STREAM = stream_answer("data: 1", "event: output\ndata: 2", "data: 3\r\ndata: 4")


def read(data: bytes, cuts: list[int]) -> ResponseReader:
    """Feed it in pieces, at times 0, 1, 2 ..."""
    reader = ResponseReader()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for number, (start, end) in enumerate(pairwise(edges)):
        reader.feed(float(number), data[start:end])
    return reader


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_and_a_document_are_read_the_same_however_they_are_cut(cuts: list[int]) -> None:
    reader = read(STREAM, cuts)
    assert reader.is_over
    assert reader.response is not None
    found = [(event.name, event.data) for event in events(reader.response)]
    assert found == [("", b"1"), ("output", b"2"), ("", b"3\n4")]
    for text in ("", "{}", "x" * 70):
        reader = read(json_answer(text), cuts)
        assert reader.is_over
        assert reader.response.body == text.encode()


def test_an_event_has_the_time_it_was_whole() -> None:
    response = Response(200, {}, [(1.0, b"data: a\n\ndata"), (2.0, b": b\n"), (3.0, b"\n")])
    assert [(event.at_s, event.data) for event in events(response)] == [(1.0, b"a"), (3.0, b"b")]


def test_comments_and_events_without_data_are_left_out() -> None:
    body = b": ping\n\ndata: 1\n\nevent: x\n\n: a\ndata: 2\n\n:\n\nevent: y\ndata: 3\n\ndata: cut"
    response = Response(200, {}, [(0.5, body[:20]), (1.5, body[20:])])
    assert [(each.name, each.data) for each in events(response)] == [("", b"1"), ("", b"2"), ("y", b"3")]


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    reader.feed(0.0, b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert not reader.is_over
    assert reader.end()


def test_trailers_and_interim_answers_are_read_over() -> None:
    reader = ResponseReader()
    reader.feed(0.0, b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM[:-2] + b"Trailer: x\r\n\r\n")
    assert reader.is_over
    assert reader.response.status == 200


def test_what_is_not_http_is_said_so() -> None:
    no_size = STREAM.partition(b"\r\n\r\n")[0] + b"\r\n\r\nno size\r\n"
    for data in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", no_size):
        with pytest.raises(MalformedResponse):
            ResponseReader().feed(0.0, data)


async def _ask(url: str, count: int = 1, timeout_s: float = 5.0) -> list[Response]:
    http = HttpClient(timeout_s)
    request = Request("POST", f"{url}/path?x=1", {"A": "b"}, b"body")
    try:
        return [await http.send(request) for _ in range(count)]
    finally:
        http.close()


def answering(data: bytes, *, stays: bool) -> ScriptedServer:
    """Return a server that answers so, and then keeps its connection or closes it without saying so."""

    def answer(asked: Asked, write: Write) -> bool:
        write(data)
        return stays

    return ScriptedServer(answer)


def test_a_request_arrives_as_it_was_meant() -> None:
    with answering(json_answer("{}"), stays=True) as server:
        asyncio.run(_ask(server.url))
        (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/path?x=1", b"body")
    assert asked.headers["a"] == "b"
    assert asked.headers["host"] == server.url.removeprefix("http://")


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure() -> None:
    with answering(json_answer("0"), stays=False) as server:
        found = asyncio.run(_ask(server.url, 5))
    assert [response.body for response in found] == [b"0"] * len(server.asked) == [b"0"] * 5


@pytest.mark.parametrize(
    ("stays", "told"), [(False, "ended before the answer"), (True, r"no whole answer within 0\.2 s")]
)
def test_a_server_that_cuts_its_answer_off_or_hangs_is_given_up(stays: bool, told: str) -> None:
    limit_s = 0.2 if stays else 5.0
    with answering(STREAM[:-10], stays=stays) as server, pytest.raises(RequestFailed, match=told):
        asyncio.run(_ask(server.url, timeout_s=limit_s))


def test_a_port_where_nobody_listens_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(RequestFailed, match="no connection"):
        asyncio.run(_ask(f"http://127.0.0.1:{port}"))
