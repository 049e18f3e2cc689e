"""Downloads that end well: by ranges or in one piece, broken off and resumed."""

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.download.body import Transfer
from engine.download.fetch import Source, fetch, local_path
from tests.engine.tar_server import Fault, TarServer
from tests.scripted_server import Asked

CONTENT = random.Random(7).randbytes(3_000_001)

FAST = Transfer(
    connections=4,
    head_bytes=10_000,
    part_bytes=200_000,
    parts_in_memory=5,
    attempts=3,
    first_wait_s=0.001,
    timeout_s=5.0,
)


def read_all(source: Source, chunk_bytes: int = 70_001) -> bytes:
    content = bytearray()
    buffer = memoryview(bytearray(chunk_bytes))
    while count := source.readinto(buffer):
        content += buffer[:count]
    return bytes(content)


def fetched(url: str, transfer: Transfer = FAST) -> bytes:
    with fetch(url, transfer=transfer) as source:
        return read_all(source)


@pytest.fixture(autouse=True)
def _content(server: TarServer) -> None:
    server.content = CONTENT


@pytest.mark.parametrize("etag", ['"v1"', 'W/"v1"'])
def test_ranges_arrive_in_order_over_several_connections(server: TarServer, etag: str) -> None:
    server.etag = etag
    assert fetched(server.url) == CONTENT
    assert sorted(request.first or 0 for request in server.asked) == [
        0,
        *range(10_000, len(CONTENT), 200_000),
    ]
    assert server.sent_bytes == len(CONTENT)


@pytest.mark.parametrize("size_bytes", [0, 1, 9_999, 10_000, 10_001, 210_001])
def test_every_size_is_fetched_to_its_last_byte(server: TarServer, size_bytes: int) -> None:
    server.content = CONTENT[:size_bytes]
    assert fetched(server.url) == CONTENT[:size_bytes]


def test_each_broken_range_goes_on_where_it_broke(server: TarServer) -> None:
    broken: set[int] = set()

    def break_once(request: Asked) -> Fault | None:
        if request.first in broken or request.first is None or (request.first - 10_000) % 200_000:
            return None
        broken.add(request.first)
        return Fault(body_bytes=60_000)

    server.fault = break_once
    assert fetched(server.url) == CONTENT
    assert len(broken) > 10
    resumed = {request.first for request in server.asked} - broken - {0}
    assert resumed == {first + 60_000 for first in broken if first + 60_000 < len(CONTENT)}
    assert server.sent_bytes == len(CONTENT)


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_failure_that_passes_is_waited_for(server: TarServer, status: int) -> None:
    """Also connections that are reset, and ranges that are shorter than asked for."""
    server.content = CONTENT[:300_000]

    def fault(request: Asked) -> Fault | None:
        if request.number in (0, 1):
            return Fault(status=status)
        return Fault(body_bytes=1_000, reset=True) if request.number == 3 else Fault(body_bytes=7_000)

    server.fault = fault
    assert fetched(server.url) == CONTENT[:300_000]


def test_without_ranges_it_comes_in_one_piece_and_again_after_a_cut(server: TarServer) -> None:
    server.has_ranges = False
    assert fetched(server.url) == CONTENT
    assert len(server.asked) == 1
    server.fault = lambda request: Fault(body_bytes=1_000_000) if request.number < 3 else None
    assert fetched(server.url) == CONTENT
    server.tells_size = False
    with fetch(server.url, transfer=FAST) as source:
        assert source.size_bytes is None
        assert read_all(source) == CONTENT


def test_ranges_that_make_no_sense_are_done_without(server: TarServer) -> None:
    server.fault = lambda request: (
        Fault(headers={"Content-Range": "bytes 5-20/*"}) if request.first is not None else None
    )
    assert fetched(server.url) == CONTENT


def test_redirects_are_followed_once_and_remembered(server: TarServer) -> None:
    with TarServer(b"") as front:
        front.fault = lambda request: Fault(status=302, headers={"Location": server.url + "?signed=1"})
        assert fetched(front.url) == CONTENT
        assert len(front.asked) == 1
    assert {request.path for request in server.asked} == {"/engine.tar?signed=1"}


def test_a_redirect_whose_target_expires_is_asked_anew(server: TarServer) -> None:
    signatures = iter(range(100))
    valid: list[str] = []
    guard = threading.Lock()

    def expire(request: Asked) -> Fault | None:
        with guard:
            if request.number == 5:
                valid.pop(0)
            return None if request.path in valid else Fault(status=403)

    def redirect(request: Asked) -> Fault:
        with guard:
            valid.append(f"/engine.tar?sig={next(signatures)}")
            return Fault(status=307, headers={"Location": server.url.replace("/engine.tar", valid[-1])})

    server.fault = expire
    with TarServer(b"") as front:
        front.fault = redirect
        assert fetched(front.url) == CONTENT
        assert len(front.asked) > 1


def test_credentials_go_to_their_own_server_alone(server: TarServer) -> None:
    with TarServer(CONTENT) as other:
        server.fault = lambda request: Fault(status=302, headers={"Location": other.url})
        assert fetched(server.url.replace("http://", "http://user:p%40ss@")) == CONTENT
        assert server.asked[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
        assert not any("authorization" in request.headers for request in other.asked)


def test_a_proxy_of_the_environment_is_used_and_odd_characters_are_quoted(
    server: TarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("/engine.tar", ""))
    assert fetched("http://engines.invalid/engine.tar") == CONTENT
    assert server.asked[0].path == "http://engines.invalid/engine.tar"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert fetched(server.url.replace("engine.tar", "mein Füllhorn.tar?a=b c#part")) == CONTENT
    assert server.asked[-1].path == "/mein%20F%C3%BCllhorn.tar?a=b%20c"


def test_local_files_need_no_server(tmp_path: Path) -> None:
    path = tmp_path / "ein Füllhorn.tar"
    path.write_bytes(CONTENT)
    for source in (path, str(path), path.as_uri()):
        with fetch(source) as stream:
            assert stream.size_bytes == len(CONTENT)
            assert read_all(stream) == CONTENT
        assert local_path(source) == path


def test_progress_counts_every_byte_once(server: TarServer) -> None:
    calls: list[tuple[int, int | None, str]] = []
    with fetch(server.url, transfer=FAST, progress=lambda *call: calls.append(call)) as source:
        read_all(source)
    assert calls[-1] == (len(CONTENT), len(CONTENT), "fetching")
    assert [done for done, _, _ in calls] == sorted({done for done, _, _ in calls})


def test_leaving_early_ends_every_thread(server: TarServer) -> None:
    hold = threading.Event()

    def stall(request: Asked) -> Fault | None:
        if (request.first or 0) > 10_000:
            hold.wait(10)
        return None

    server.fault = stall
    with fetch(server.url, transfer=FAST) as source:
        buffer = memoryview(bytearray(20_000))
        while source.readinto(buffer) < 20_000:
            pass
    fetchers = [thread for thread in threading.enumerate() if thread.name == "fetch"]
    hold.set()
    assert fetchers == []


def test_a_server_that_limits_connections_is_asked_again_while_others_bring_content(
    server: TarServer,
) -> None:
    asked = {first: threading.Event() for first in range(10_000, 1_010_000, 200_000)}
    refused = [threading.Event() for _ in range(2 * FAST.attempts)]
    # The other connection goes on between two refusals, and only there.
    waits = {210_000: refused[0], 610_000: refused[3]}
    awaited = {2: asked[410_000], 5: asked[810_000]}

    def refuse_twice_as_often_as_is_allowed(request: Asked) -> Fault | None:
        if (first := request.first) in asked:
            asked[first].set()
        count = sum(each.is_set() for each in refused)
        if first != 10_000 or count == len(refused):
            assert first not in waits or waits[first].wait(60)
            return None
        refused[count].set()
        assert count not in awaited or awaited[count].wait(60)
        return Fault(status=503)

    server.fault = refuse_twice_as_often_as_is_allowed
    assert fetched(server.url, replace(FAST, connections=2)) == CONTENT
    assert all(each.is_set() for each in refused)
