"""Downloads that can't end well: each says what is wrong, and never shows a secret."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from urllib3 import HTTPHeaderDict

from engine.download.fetch import fetch
from engine.download.http import MAX_RETRY_AFTER_S, retry_after_s
from errors.coded_error import CodedError
from errors.download import (
    RedirectRefused,
    SourceChanged,
    SourceFailed,
    SourceForbidden,
    SourceInterrupted,
    SourceNotFound,
    SourceUnreachable,
    SourceUnsupported,
)
from errors.engine_tar import EngineNotFound, EngineUnreadable
from tests.engine.download.test_fetch import CONTENT, FAST, fetched, read_all
from tests.engine.tar_server import Fault, TarServer
from tests.scripted_server import Asked, ScriptedServer


@pytest.fixture(autouse=True)
def _content(server: TarServer) -> None:
    server.content = CONTENT


@pytest.mark.parametrize(
    ("status", "error", "told", "tries"),
    [
        (404, SourceNotFound, "404", 1),
        (410, SourceNotFound, "410", 1),
        (403, SourceForbidden, "403.* may have expired", 1),
        (418, SourceFailed, "418", 1),
        (503, SourceFailed, "503", 3),
        (204, SourceFailed, "204", 1),
        (302, SourceFailed, "302 without a location", 1),
        (206, SourceFailed, "unexpected HTTP 206", 2),
    ],
)
def test_an_answer_that_is_no_engine_is_told_by_its_status(
    server: TarServer, status: int, error: type[CodedError], told: str, tries: int
) -> None:
    server.fault = lambda request: Fault(status=status)
    url = server.url.replace("http://", "http://user:s3cret@") + "?X-Amz-Expires=60&X-Amz-Signature=s3cret"
    with pytest.raises(error, match=told) as caught:
        fetched(url)
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert len(server.asked) == tries


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, 0),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "soon"}, 0),
        ({"Retry-After": "86400"}, MAX_RETRY_AFTER_S),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55),
        ({"RateLimit": "nonsense"}, 0),
    ],
)
def test_the_wait_that_a_server_asks_for_is_kept_within_limits(
    headers: dict[str, str], wait_s: float
) -> None:
    assert retry_after_s(HTTPHeaderDict(headers)) == wait_s


def test_a_server_or_a_host_that_is_not_there(server: TarServer) -> None:
    server.close()
    for url, told in (
        (server.url, "nothing listens there"),
        ("http://engines.invalid/x", "does not resolve"),
    ):
        with pytest.raises(SourceUnreachable, match=told):
            fetched(url)


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        impatient = replace(FAST, timeout_s=0.05, attempts=2)
        with pytest.raises(SourceUnreachable, match="does not answer"):
            fetched(f"http://127.0.0.1:{silent.getsockname()[1]}/engine.tar", impatient)


def test_a_server_that_speaks_something_else() -> None:
    with (
        ScriptedServer(lambda asked, write: write(b"220 ftp ready\r\n") is None) as other,
        pytest.raises(SourceUnreachable, match="E1315"),
    ):
        fetched(f"{other.url}/engine.tar")


def test_a_server_that_dies_during_the_download(server: TarServer) -> None:
    with fetch(server.url, transfer=FAST) as source:
        source.readinto(memoryview(bytearray(10_000)))
        server.close()
        with pytest.raises(SourceUnreachable):
            read_all(source)


def test_a_range_that_breaks_again_and_again_without_a_byte(server: TarServer) -> None:
    server.fault = lambda request: Fault(body_bytes=0) if request.first == 210_000 else None
    with pytest.raises(SourceInterrupted, match="broke off after 210000 of 3000001 bytes"):
        fetched(server.url)


@pytest.mark.parametrize(
    ("fault", "honours_if_range"),
    [
        (Fault(content=CONTENT[::-1], etag='"v2"'), True),
        (Fault(content=CONTENT + b"more", etag='"v2"'), False),
        (Fault(content=CONTENT[:50_000], etag='"v2"'), True),
        (Fault(content=CONTENT[:50_000], etag='"v2"'), False),
        (Fault(content=CONTENT + b"more"), True),
    ],
)
def test_content_that_changes_meanwhile_is_noticed(
    server: TarServer, fault: Fault, honours_if_range: bool
) -> None:
    server.honours_if_range = honours_if_range
    server.fault = lambda request: fault if (request.first or 0) > 1_000_000 else None
    with pytest.raises(SourceChanged, match="E1320"):
        fetched(server.url)


def test_one_piece_that_changes_before_it_is_fetched_again(server: TarServer) -> None:
    server.has_ranges = False
    server.fault = lambda request: Fault(body_bytes=99) if request.number == 0 else Fault(etag='"v2"')
    with pytest.raises(SourceChanged, match="v2"):
        fetched(server.url)


@pytest.mark.parametrize(("etag", "requests"), [(None, 1), ('"v1"', 4)])
def test_one_piece_that_breaks_each_time_is_resumed_only_of_a_known_version(
    server: TarServer, etag: str | None, requests: int
) -> None:
    server.has_ranges, server.etag = False, etag
    server.fault = lambda request: Fault(body_bytes=1_000_000 + request.number)
    with pytest.raises(SourceInterrupted, match=r"after \d+ of 3000001 bytes"):
        fetched(server.url)
    assert len(server.asked) == requests


def test_ranges_answered_with_other_ranges_are_refused(server: TarServer) -> None:
    def shifted(request: Asked) -> Fault | None:
        return Fault(headers={"Content-Range": "bytes 1-9/3000001"}) if request.first else None

    server.fault = shifted
    with pytest.raises((SourceFailed, SourceInterrupted)):
        fetched(server.url)


@pytest.mark.parametrize(
    ("location", "told"),
    [("/engine.tar", "more than 10 times"), ("file:///etc/passwd", "to file"), ("http://[", "no URL")],
)
def test_redirects_have_their_bounds(server: TarServer, location: str, told: str) -> None:
    server.fault = lambda request: Fault(status=302, headers={"Location": location})
    with pytest.raises(RedirectRefused, match=told):
        fetched(server.url)


def test_sources_of_other_kinds_are_refused() -> None:
    for source in (
        "s3://bucket/x",
        "http:///x",
        "http://h:port/x",
        "file://other/x",
        "http://[::1/x",
        "http://x/\udcff",
    ):
        with pytest.raises(SourceUnsupported, match="E1314"):
            fetch(source)


def test_local_files_that_are_none(tmp_path: Path) -> None:
    for source, told in [(tmp_path / "nothing", "does not exist"), (tmp_path, "is a directory")]:
        with pytest.raises(EngineNotFound, match=told):
            fetch(source)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises((EngineNotFound, EngineUnreadable)):
        fetch(tmp_path / "loop")
