"""The HTTP server follows RFC 9110 and RFC 9112."""

import json
from email.utils import parsedate_to_datetime

import pytest

from tests.hostile import chunked, request
from tests.runner.http.client import Client

HOST = "Host: localhost"


def head(first: str = "GET / HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join([first, *headers, "", ""]).encode("latin-1")


async def ask(data: bytes) -> tuple[list[int], bytes, list[tuple[str, bytes]]]:
    """Return all answers' statuses and bytes, and the paths and bodies of requests that arrived."""
    client = Client()
    answer = await client.send(data)
    return client.statuses(), answer, [each[1:] for each in client.seen]


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
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (head("CONNECT example.com:443 HTTP/1.1", HOST), 400),
        (request("/", b"{}", "X: a\nb"), 400),
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
        (request("/", b"{}", "Content-Length: 5"), 400),
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
async def test_what_the_rfcs_say_of_a_request(data: bytes, status: int) -> None:
    statuses, answer, seen = await ask(data)
    assert statuses == [status]
    assert len(seen) == (status == 200)
    assert (b"accept-encoding: identity" in answer) == (status == 415)
    if status != 200:
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == ("E1610" if status == 400 else "E1615")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/%61?b", "/a"),
        ("http://other.example:80/a?b", "/a"),
        ("HTTPS://other.example/a", "/a"),
    ],
)
async def test_targets_that_mean_the_same_arrive_as_one_path(target: str, path: str) -> None:
    statuses, _, seen = await ask(head(f"GET {target} HTTP/1.1", HOST))
    assert (statuses, seen) == ([200], [(path, b"")])


@pytest.mark.parametrize("target", ["/a/b/", "//a//b?c=/", "/a%2Fb", "http://other.example//a/b"])
async def test_paths_with_slashes_too_many_are_read(target: str) -> None:
    assert (await ask(head(f"GET {target} HTTP/1.1", HOST)))[2] == [("/a/b", b"")]


async def test_a_100_is_sent_to_a_client_that_waits_and_not_to_http_1_0() -> None:
    data = request("/", b"{}", "Expect: 100-Continue")
    assert (await ask(data[:-2]))[0] == [100]
    assert (await ask(data))[0][-1] == 200
    assert (await ask(data.replace(b"1.1", b"1.0")))[0] == [200]


async def test_every_answer_has_a_date_and_a_head_none_of_its_body() -> None:
    heads = [b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
    for data, status in zip(heads, (200, 400, 400), strict=True):
        statuses, answer, _ = await ask(data)
        assert statuses == [status]
        fields, _, body = answer.partition(b"\r\n\r\n")
        assert bool(body) == data.startswith(b"GET")
        headers = dict(line.split(": ", 1) for line in fields.decode().splitlines()[1:])
        assert parsedate_to_datetime(headers["date"]).year > 2000
        assert int(headers["content-length"]) > 0


async def test_requests_before_a_bad_one_are_still_answered() -> None:
    for bad in (b"GARBAGE\r\n\r\n", head("BREW / HTTP/1.1", HOST)):
        statuses, answer, seen = await ask(request("/a", b"{}") + request("/b", b"{}") + bad)
        assert statuses == [200, 200]
        assert b"connection: close" in answer.rpartition(b"HTTP/1.1 ")[2]
        assert len(seen) == 2


async def test_a_refusal_of_the_messages_api_is_in_its_format() -> None:
    _, answer, _ = await ask(request("/v1/messages", b"{}", "Content-Encoding: gzip"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "error"


async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection() -> None:
    _, answer, _ = await ask(head("GET /stream HTTP/1.0"))
    assert b"transfer-encoding" not in answer
    assert b"connection: close" in answer
    assert answer.endswith(b"\r\n\r\nab")
    _, answer, _ = await ask(head("GET /stream HTTP/1.1", HOST))
    assert answer.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


async def test_an_offer_to_upgrade_the_connection_is_left_unused() -> None:
    """Offer as Java's HttpClient does in each first request, which may have a body."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    whole, parts = request("/a", b"{}", *offer), chunked("/b", [b"[", b"]"], *offer)
    statuses, _, seen = await ask(whole + parts + request("/c", b"1"))
    assert statuses == [200] * 3
    assert seen == [("/a", b"{}"), ("/b", b"[]"), ("/c", b"1")]
