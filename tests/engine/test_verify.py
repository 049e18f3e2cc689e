"""verify reads every byte; inspect reads only the first ones."""

import gzip
import io
from pathlib import Path

import pytest

from engine.download.body import DEFAULT_TRANSFER
from engine.inspect import read_manifest, verify
from engine.tar.manifest import MANIFEST_NAME
from engine.tar.unpack import unpack
from errors.engine_tar import (
    EngineFileDamaged,
    EngineFileMissing,
    EngineNotFound,
    InvalidManifest,
    UnexpectedEngineFile,
)
from tests.engine.samples import FILES, LEGACY_FILES, handmade_tar, legacy_tar, packed, write_files
from tests.engine.tar_server import TarServer


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return packed(tmp_path)


@pytest.fixture
def engine(tar: Path, tmp_path: Path) -> Path:
    unpack(io.BytesIO(tar.read_bytes()), tmp_path / "engine")
    return tmp_path / "engine"


def test_a_flipped_bit_and_missing_and_additional_files_are_found(tar: Path, engine: Path) -> None:
    assert verify(engine) == verify(tar) == read_manifest(tar)
    content = bytearray(FILES["model.safetensors"])
    content[5000] ^= 4
    (engine / "model.safetensors").write_bytes(content)
    with pytest.raises(EngineFileDamaged, match=r"model\.safetensors.*sha256"):
        verify(engine)
    (engine / "extra").write_text("x")
    with pytest.raises(UnexpectedEngineFile, match="extra"):
        verify(engine)
    (engine / "extra").unlink()
    (engine / "config.json").unlink()
    with pytest.raises(EngineFileMissing, match=r"config\.json"):
        verify(engine)


def test_an_engine_without_manifest_is_described(tmp_path: Path) -> None:
    (tmp_path / "legacy.tar").write_bytes(legacy_tar())
    from_tar = verify(tmp_path / "legacy.tar")
    assert (from_tar.engine_kind, from_tar.world_size) == ("tensorrt_llm", 2)
    assert read_manifest(tmp_path / "legacy.tar") == from_tar
    directory = write_files(tmp_path / "legacy", LEGACY_FILES)
    assert verify(directory) == read_manifest(directory)


def test_a_manifest_in_the_middle_of_a_tar_is_found(tar: Path, engine: Path, tmp_path: Path) -> None:
    manifest = (engine / MANIFEST_NAME).read_bytes()
    members = [*FILES.items()]
    members.insert(2, (MANIFEST_NAME, manifest))
    (tmp_path / "middle.tar").write_bytes(handmade_tar(members))
    assert read_manifest(tmp_path / "middle.tar") == read_manifest(tar)


def test_nothing_there_is_e1301_and_a_manifest_that_claims_too_much_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "big.tar").write_bytes(handmade_tar([(MANIFEST_NAME, b" " * (17 << 20))]))
    for check in (verify, read_manifest):
        with pytest.raises(EngineNotFound, match="E1301"):
            check(tmp_path / "nothing")
        with pytest.raises(InvalidManifest, match="bytes are too many"):
            check(tmp_path / "big.tar")


@pytest.mark.parametrize("has_ranges", [True, False])
def test_of_a_url_only_the_first_bytes_are_asked_for(server: TarServer, tar: Path, has_ranges: bool) -> None:
    server.content = tar.read_bytes()
    server.has_ranges = has_ranges
    assert read_manifest(server.url) == read_manifest(tar)
    assert len(server.asked) == 1
    assert not has_ranges or server.sent_bytes == DEFAULT_TRANSFER.head_bytes


def test_a_zipped_tar_is_inspected_like_a_plain_one(tar: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.tar.gz").write_bytes(gzip.compress(tar.read_bytes()))
    assert read_manifest(tmp_path / "engine.tar.gz") == verify(tmp_path / "engine.tar.gz")
    assert read_manifest((tmp_path / "engine.tar.gz").as_uri()).model_id == "acme/tiny"


def test_a_url_of_a_tar_without_manifest_says_what_to_do(server: TarServer) -> None:
    server.content = legacy_tar()
    with pytest.raises(InvalidManifest, match="download it to inspect it"):
        read_manifest(server.url)
