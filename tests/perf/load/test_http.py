"""The load generator's HTTP client: framing however the bytes come, and servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.response import MalformedResponse, Response, ResponseReader, events
from tests.perf.load.scripted_server import Asked, ScriptedServer, json_answer, stream_answer

Write = Callable[[bytes], None]
STREAM = stream_answer("data: 1", "event: output\ndata: 2", "data: 3\r\ndata: 4")


def read(data: bytes, cuts: list[int]) -> ResponseReader:
    """Feed it in pieces, at times 0, 1, 2 ..."""
    reader = ResponseReader()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for number, (start, end) in enumerate(pairwise(edges)):
        reader.feed(float(number), data[start:end])
    return reader


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_is_read_the_same_however_it_is_cut(cuts: list[int]) -> None:
    reader = read(STREAM, cuts)
    assert reader.is_over
    assert reader.response is not None
    found = [(event.name, event.data) for event in events(reader.response)]
    assert found == [("", b"1"), ("output", b"2"), ("", b"3\n4")]


@given(st.lists(st.integers(0, 200), max_size=5), st.sampled_from(["", "{}", "x" * 70]))
def test_a_document_is_read_the_same_however_it_is_cut(cuts: list[int], text: str) -> None:
    reader = read(json_answer(text), cuts)
    assert reader.is_over
    assert reader.response is not None
    assert reader.response.body == text.encode()


def test_an_event_has_the_time_it_was_whole() -> None:
    response = Response(200, {}, [(1.0, b"data: a\n\ndata"), (2.0, b": b\n"), (3.0, b"\n")])
    assert [(event.at_s, event.data) for event in events(response)] == [(1.0, b"a"), (3.0, b"b")]


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_no_part_of_a_stream_is_over(cut: int) -> None:
    reader = ResponseReader()
    reader.feed(0.0, STREAM[:cut])
    assert not reader.is_over
    assert not reader.end()


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    reader.feed(0.0, b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert not reader.is_over
    assert reader.end()


def test_trailers_and_interim_answers_are_read_over() -> None:
    reader = ResponseReader()
    reader.feed(0.0, b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM[:-2] + b"Trailer: x\r\n\r\n")
    assert reader.is_over
    assert reader.response is not None
    assert reader.response.status == 200


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", STREAM.partition(b"\r\n\r\n")[0] + b"\r\n\r\nno size\r\n"],
)
def test_what_is_not_http_is_said_so(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        ResponseReader().feed(0.0, data)


async def _ask(url: str, count: int = 1, timeout_s: float = 5.0) -> list[Response]:
    http = HttpClient(timeout_s)
    try:
        return [
            await http.send(Request("POST", f"{url}/path?x=1", {"A": "b"}, b"body")) for _ in range(count)
        ]
    finally:
        http.close()


def test_a_request_arrives_as_it_was_meant() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        write(json_answer("{}"))
        return True

    with ScriptedServer(answer) as server:
        asyncio.run(_ask(server.url))
        (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/path?x=1", b"body")
    assert asked.headers["a"] == "b"
    assert asked.headers["host"] == server.url.removeprefix("http://")


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        write(json_answer(str(asked.number)))
        return False  # Without saying so.

    with ScriptedServer(answer) as server:
        found = asyncio.run(_ask(server.url, 5))
    assert [response.body for response in found] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_answer_cut_off_is_a_failure() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        write(STREAM[:-10])
        return False

    with ScriptedServer(answer) as server, pytest.raises(RequestFailed, match="ended before the answer"):
        asyncio.run(_ask(server.url))


def test_a_server_that_hangs_is_given_up() -> None:
    def answer(asked: Asked, write: Write) -> bool:
        write(STREAM[:-10])
        return True  # and nothing more, ever

    with (
        ScriptedServer(answer) as server,
        pytest.raises(RequestFailed, match=r"no whole answer within 0\.2 s"),
    ):
        asyncio.run(_ask(server.url, timeout_s=0.2))


def test_a_port_where_nobody_listens_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(RequestFailed, match="no connection"):
        asyncio.run(_ask(f"http://127.0.0.1:{port}"))
