"""The cache finds an engine by its content, and never takes one for another."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.cache.store import open_engine
from engine.directory import Engine
from engine.download.body import Transfer
from engine.tar.manifest import EngineFacts, Manifest
from errors.coded_error import CodedError
from errors.download import SourceNotFound, SourceUnreachable
from errors.engine_tar import EngineNotFound
from errors.machine import GpuRequired
from tests.engine.samples import FILES, LEGACY_FILES, everything_in, legacy_tar, packed, read_files
from tests.engine.tar_server import Fault, TarServer

FAST = Transfer(head_bytes=20_000, part_bytes=100_000, attempts=2, first_wait_s=0.001)
OTHER_FILES = {**FILES, "model.safetensors": b"other weights" * 30_000}


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return packed(tmp_path).read_bytes()


@pytest.fixture
def other_tar(tmp_path: Path) -> bytes:
    return packed(tmp_path / "other", OTHER_FILES).read_bytes()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _open(source: str | Path, cache: Path) -> Engine:
    return open_engine(source, cache, transfer=FAST)


def _engines(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "engines").iterdir())


def test_a_directory_is_used_where_it_is(tar: bytes, tmp_path: Path, cache: Path) -> None:
    engine = _open(_open(packed(tmp_path), cache).path, tmp_path / "unused")
    assert read_files(engine.path) == FILES
    assert _open(engine.path.as_uri(), tmp_path / "unused").path == engine.path
    assert not (tmp_path / "unused").exists()


def test_the_same_url_is_downloaded_once(server: TarServer, tar: bytes, cache: Path) -> None:
    server.content = tar
    first = _open(server.url, cache)
    assert read_files(first.path) == FILES
    server.asked.clear()
    server.sent_bytes = 0
    assert _open(server.url, cache) == first
    assert len(server.asked) == 1
    assert server.sent_bytes == FAST.head_bytes


def test_an_engine_is_known_by_its_content_and_not_by_its_place(
    server: TarServer, tar: bytes, other_tar: bytes, cache: Path, tmp_path: Path
) -> None:
    server.content = tar
    first = _open(server.url + "?signature=1", cache)
    server.sent_bytes = 0
    assert _open(server.url + "?signature=2", cache).path == first.path
    assert server.sent_bytes == FAST.head_bytes
    (tmp_path / "copy.tar").write_bytes(tar)
    server.etag, server.has_ranges = None, False
    inode = (first.path / "model.safetensors").stat().st_ino
    for source in (tmp_path / "copy.tar", server.url):
        assert (_open(source, cache).path / "model.safetensors").stat().st_ino == inode
    server.content = other_tar
    assert read_files(_open(server.url, cache).path) == OTHER_FILES
    assert read_files(first.path) == FILES


def test_engines_that_differ_in_facts_alone_are_two(server: TarServer, tmp_path: Path, cache: Path) -> None:
    kinds = []
    for sm in (86, 90):
        server.content = packed(
            tmp_path / str(sm), FILES, EngineFacts(engine_kind="vllm", sm=sm)
        ).read_bytes()
        kinds.append(_open(server.url, cache).manifest.sm)
    assert kinds == [86, 90]


def test_a_tar_without_manifest_is_known_by_its_etag(server: TarServer, cache: Path) -> None:
    server.content = legacy_tar()
    first = _open(server.url, cache)
    assert first.warnings
    assert read_files(first.path) == LEGACY_FILES
    server.sent_bytes = 0
    assert _open(server.url, cache) == first
    assert server.sent_bytes <= FAST.head_bytes
    server.content = legacy_tar(("more", b"x"))
    server.etag = '"v2"'
    assert "more" in read_files(_open(server.url, cache).path)


def test_a_tar_without_manifest_and_version_is_fetched_each_time_and_a_rewritten_file_read_anew(
    server: TarServer, tmp_path: Path, cache: Path
) -> None:
    server.etag = None
    for content in (b"1", b"2"):
        server.content = legacy_tar(("marker", content))
        assert read_files(_open(server.url, cache).path)["marker"] == content
        assert len(_engines(cache)) == 1
    for content in (b"1", b"2"):
        (tmp_path / "new.tar").write_bytes(legacy_tar(("marker", content)))
        (tmp_path / "new.tar").replace(tmp_path / "engine.tar")
        assert read_files(_open(tmp_path / "engine.tar", cache).path)["marker"] == content


def test_a_damaged_cache_is_filled_again(server: TarServer, tar: bytes, cache: Path) -> None:
    server.content = tar
    engine = _open(server.url, cache)
    for spoil in ("truncate", "remove", "empty"):
        if spoil == "truncate":
            (engine.path / "model.safetensors").write_bytes(b"short")
        elif spoil == "remove":
            (engine.path / "config.json").unlink()
        else:
            (engine.path / "engine_manifest.json").write_bytes(b"")
        assert read_files(_open(server.url, cache).path) == FILES
    assert _engines(cache) == [engine.path.name]


def test_an_engine_that_is_not_wanted_is_not_downloaded(
    server: TarServer, tar: bytes, cache: Path, tmp_path: Path
) -> None:
    def refuse(manifest: Manifest) -> None:
        raise GpuRequired(engine_kind=manifest.engine_kind)

    server.content = tar
    with pytest.raises(GpuRequired, match="transformers"):
        open_engine(server.url, cache, check=refuse, transfer=FAST)
    assert server.sent_bytes == FAST.head_bytes
    assert everything_in(cache) == ["engines", "sources"]
    server.content = legacy_tar()
    with pytest.raises(GpuRequired, match="tensorrt_llm"):
        open_engine(server.url, cache, check=refuse, transfer=FAST)


def test_a_source_that_is_away_or_expired_is_not_needed_again_and_one_removed_is_an_error(
    server: TarServer, tar: bytes, cache: Path
) -> None:
    server.content = tar
    first = _open(server.url, cache)
    server.fault = lambda request: Fault(status=404)
    with pytest.raises(SourceNotFound):
        _open(server.url, cache)
    server.fault = lambda request: Fault(status=403)
    second = _open(server.url, cache)
    assert second.path == first.path
    assert "could not be asked" in second.warnings[0]
    assert "E1317" not in second.warnings[0]
    server.close()
    assert _open(server.url, cache).path == first.path
    with pytest.raises(SourceUnreachable):
        _open(server.url + "?other", cache)


def test_threads_that_want_the_same_engine_download_it_once(
    server: TarServer, tar: bytes, cache: Path
) -> None:
    server.content = tar
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(lambda _: _open(server.url, cache).path.name, range(6)))
    assert _engines(cache) == [*paths]
    assert server.sent_bytes == len(tar) + 5 * FAST.head_bytes


def test_a_path_need_not_be_text_but_must_have_an_engine_and_a_cache_that_can_be_written(
    tar: bytes, tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / os.fsdecode(b"b\xff.tar")
    path.write_bytes(tar)
    assert read_files(_open(path, cache).path) == FILES
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "nowhere.tar"):
        with pytest.raises(EngineNotFound, match="E1301"):
            _open(source, cache)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(CodedError, match="E1311"):
        _open(path, tmp_path / "file")
