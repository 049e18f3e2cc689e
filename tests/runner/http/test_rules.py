"""Both HTTP servers follow RFC 9110 and RFC 9112: the same bytes get the same status from each."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from email.utils import parsedate_to_datetime
from typing import Any
from unittest.mock import MagicMock

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runner.api.server import refuse
from runner.http.connection import HTTPConnection
from runner.http.connections import Connections, Limits
from tests.hostile import chunked, request
from tests.runner.triton_server.front.http.client import Client

Server = Callable[[bytes, list[tuple[str, bytes]]], Coroutine[Any, Any, bytes]]
HOST = "Host: localhost"
_LIMITS = Limits(
    max_connections=3, max_head_bytes=1000, max_body_bytes=1000, receive_timeout_s=60, idle_timeout_s=60
)


def head(first: str = "GET / HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join([first, *headers, "", ""]).encode("latin-1")


async def ask_api(data: bytes, seen: list[tuple[str, bytes]]) -> bytes:
    """The bytes that the API server's connection answers; ``seen``: paths and bodies of its requests."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        seen.append((scope["path"], body))
        if scope["path"] != "/stream":
            await Response(b'{"a": 1}')(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": part, "more_body": part != b""})

    connection = HTTPConnection(application, Connections(_LIMITS), refuse)
    transport = MagicMock(asyncio.Transport)
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    connection.data_received(data)
    for _ in range(50):
        await asyncio.sleep(0)
    return b"".join(each.args[0] for each in transport.write.call_args_list)


async def ask_front(data: bytes, seen: list[tuple[str, bytes]]) -> bytes:
    client = Client()
    answer = await client.send(data)
    seen += [(each.path, bytes(each.body)) for each in client.requests]
    return answer


def ask(server: Server, data: bytes) -> tuple[list[int], bytes, list[tuple[str, bytes]]]:
    """The statuses of all answers, their bytes, and the requests that arrived."""
    seen: list[tuple[str, bytes]] = []
    answer = asyncio.run(server(data, seen))
    statuses = [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) \w", answer)]
    return statuses, answer, seen


both = pytest.mark.parametrize("server", [ask_api, ask_front])


@both
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(), 400),  # No Host.
        (head("GET / HTTP/1.0"), 200),
        (head("GET / HTTP/1.1", "Host:"), 200),
        (head("GET / HTTP/1.1", "host: [::1]:9000"), 200),
        (head("GET / HTTP/1.1", HOST, HOST), 400),
        (head("GET / HTTP/1.1", "Host: a/b"), 400),
        (head("GET / HTTP/1.1", "Host: a b"), 400),
        (head("GET / HTTP/1.1", "Host: a:b"), 400),
        (head("GET / HTTP/1.0", HOST, HOST), 400),
        (head("GET / HTTP/2.0", HOST), 505),
        (head("GET / HTTP/3.1", HOST), 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (head("BREW / HTTP/1.1", HOST), 501),
        (head("get / HTTP/1.1", HOST), 501),
        (b"\x16\x03\x01" + b"\0" * 100, 400),
        (head("GET * HTTP/1.1", HOST), 400),
        (head("GET ftp://a/ HTTP/1.1", HOST), 400),
        (head("GET http://me@a/ HTTP/1.1", HOST), 400),
        (head("GET / HTTP/1.1", HOST, "X: a", " b"), 400),
        (head("GET / HTTP/1.1", "Host : localhost"), 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (head("GET / HTTP/1.1", HOST, "X:", "Range: bytes=0-1", "TE: trailers", "Upgrade: h2c"), 200),
        (request("/", b"{}", "Transfer-Encoding: chunked"), 400),
        (request("/", b"{}", "Content-Length: 2"), 400),
        (head("POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip, chunked"), 501),
        (head("POST / HTTP/1.1", HOST, "Transfer-Encoding: gzip"), 501),
        (head("POST / HTTP/1.1", HOST, "Transfer-Encoding: chunked, gzip"), 400),
        (head("POST / HTTP/1.0", HOST, "Transfer-Encoding: chunked"), 400),
        (request("/", b"{}", "Content-Encoding: GZIP"), 415),
        (request("/", b"{}", "Content-Encoding: identity, br"), 415),
        (request("/", b"{}", "Content-Encoding: Identity"), 200),
        (request("/", b"{}", "Content-Encoding:"), 200),
        (request("/", b"{}", "Expect: 200-ok"), 417),
        (request("/", b"{}", "Expect: 100-continue, 200-ok"), 417),
        (request("/", b"{}", "Expect: 200-ok").replace(b"1.1", b"1.0"), 200),
        (chunked("/", [b"a"]).replace(b"1\r\na", b'1;b=c;d="e"\r\na'), 200),
        (chunked("/", [b"a"])[:-2] + b"X: trailer\r\n\r\n", 200),
    ],
)
def test_what_the_rfcs_say_of_a_request(server: Server, data: bytes, status: int) -> None:
    statuses, answer, seen = ask(server, data)
    assert statuses == [status]
    assert len(seen) == (status == 200)
    assert (b"accept-encoding: identity" in answer) == (status == 415)
    if status != 200:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"] if isinstance(error, dict) else error).startswith(("E1610", "E1615", "E1107"))


@both
@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/%61?b", "/a"),
        ("http://other.example:80/a?b", "/a"),
        ("HTTPS://other.example/a", "/a"),
    ],
)
def test_targets_that_mean_the_same_arrive_as_one_path(server: Server, target: str, path: str) -> None:
    statuses, _, seen = ask(server, head(f"GET {target} HTTP/1.1", HOST))
    assert (statuses, seen) == ([200], [(path, b"")])


@pytest.mark.parametrize("target", ["/a/b/", "//a//b?c=/", "/a%2Fb", "http://other.example//a/b"])
def test_the_api_server_reads_paths_with_slashes_too_many(target: str) -> None:
    assert ask(ask_api, head(f"GET {target} HTTP/1.1", HOST))[2] == [("/a/b", b"")]


@both
def test_a_100_is_sent_to_a_client_that_waits_and_not_to_http_1_0(server: Server) -> None:
    data = request("/", b"{}", "Expect: 100-Continue")
    assert ask(server, data[:-2])[0] == [100]
    assert ask(server, data)[0][-1] == 200
    assert ask(server, data.replace(b"1.1", b"1.0"))[0] == [200]


@both
def test_every_answer_has_a_date_and_a_head_none_of_its_body(server: Server) -> None:
    heads = [b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
    for data, status in zip(heads, (200, 400, 400), strict=True):
        statuses, answer, _ = ask(server, data)
        assert statuses == [status]
        fields, _, body = answer.partition(b"\r\n\r\n")
        assert bool(body) == data.startswith(b"GET")
        headers = dict(line.split(": ", 1) for line in fields.decode().splitlines()[1:])
        assert parsedate_to_datetime(headers["date"]).year > 2000
        assert int(headers["content-length"]) > 0


@both
def test_requests_before_a_bad_one_are_still_answered(server: Server) -> None:
    for bad, refused in ((b"GARBAGE\r\n\r\n", [400]), (head("BREW / HTTP/1.1", HOST), [501])):
        statuses, answer, seen = ask(server, request("/a", b"{}") + request("/b", b"{}") + bad)
        assert statuses == [200, 200, *(refused if server is ask_front else [])]
        assert b"connection: close" in answer.rpartition(b"HTTP/1.1 ")[2]
        assert len(seen) == 2


def test_a_refusal_of_the_messages_api_is_in_its_format() -> None:
    answer = ask(ask_api, request("/v1/messages", b"{}", "Content-Encoding: gzip"))[1]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "error"


def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection() -> None:
    _, answer, _ = ask(ask_api, head("GET /stream HTTP/1.0"))
    assert b"transfer-encoding" not in answer
    assert b"connection: close" in answer
    assert answer.endswith(b"\r\n\r\nab")
    _, answer, _ = ask(ask_api, head("GET /stream HTTP/1.1", HOST))
    assert answer.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


@both
def test_an_offer_to_upgrade_the_connection_is_left_unused(server: Server) -> None:
    """As Java's HttpClient makes one with each first request, which may have a body."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    whole, parts = request("/a", b"{}", *offer), chunked("/b", [b"[", b"]"], *offer)
    statuses, _, seen = ask(server, whole + parts + request("/c", b"1"))
    assert statuses == [200] * 3
    assert seen == [("/a", b"{}"), ("/b", b"[]"), ("/c", b"1")]
