"""Tars made to write somewhere else, to fill memory or to hide what they hold."""

import io
import resource
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tar.archive import MAX_TRAILER_BYTES
from engine.tar.unpack import unpack
from engine.tar.window import BUFFER_BYTES
from errors.engine_tar import DamagedTar, EngineNotFound, UnsafeTarMember
from tests.engine.samples import everything_in, handmade_tar, legacy_tar


def _member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """Yield where to unpack; nothing may have been written when the test is over."""
    (tmp_path / "victim").write_text("untouched")
    yield tmp_path / "out" / "engine"
    assert everything_in(tmp_path) in (["out", "victim"], ["victim"])
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.parametrize(
    "name",
    ["../victim", "a/../../victim", "..", "/tmp/victim", "//victim", "a\nb", "a\x7f", "x" * 300, "a/" * 600],
)
def test_a_name_that_leaves_the_target_is_refused(name: str, target: Path) -> None:
    with pytest.raises(UnsafeTarMember, match="E1308") as caught:
        unpack(io.BytesIO(legacy_tar((name, b"evil"))), target)
    assert str(caught.value.facts["member"]).rstrip("/") == name.rstrip("/")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "pipe"),
        (b"V", "not a plain file"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
    ],
)
def test_what_is_no_plain_file_is_refused(kind: bytes, told: str, target: Path) -> None:
    for link in ("config.json", "../victim", "/etc/passwd"):
        with pytest.raises(UnsafeTarMember, match=told):
            unpack(
                io.BytesIO(legacy_tar((_member("evil", kind, link), b""), ("evil/victim", b"evil"))), target
            )


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json"], "twice"),
        (["./config.json"], "twice"),
        (["Config.JSON"], "twice"),
        (["config.json/inner"], "file and a folder"),
        (["caf\u00e9", "cafe\u0301"], "twice"),
        (["deep/file", "deep"], "file and a folder"),
    ],
)
def test_a_name_that_occurs_twice_or_is_a_file_and_a_folder_is_refused(
    names: list[str], told: str, target: Path
) -> None:
    with pytest.raises(UnsafeTarMember, match=told):
        unpack(io.BytesIO(legacy_tar(*((name, b"other") for name in names))), target)
    tar = legacy_tar(("evil_name", b"x")).replace(b"evil_name", b"evil\xff\xfe_me")
    with pytest.raises((UnsafeTarMember, DamagedTar)):
        unpack(io.BytesIO(tar), target)


def test_content_behind_the_end_marker_is_refused(target: Path) -> None:
    for garbage in (b"\1", legacy_tar(), bytes(512) + b"x"):
        with pytest.raises(DamagedTar, match="followed by more content"):
            unpack(io.BytesIO(legacy_tar() + garbage), target)
    with pytest.raises(DamagedTar, match="followed by more content"):
        unpack(io.BytesIO(legacy_tar() + bytes(MAX_TRAILER_BYTES)), target)


@pytest.mark.parametrize("fill", [b"", bytes(100_000)], ids=["short", "long"])
@pytest.mark.parametrize(
    ("beginning", "told"),
    [
        (b"\x28\xb5\x2f\xfd", "is compressed with zstd"),
        (b"\xfd7zXZ\0", "is compressed with xz"),
        (b"BZh9", "is compressed with bzip2"),
        (b"PK\x03\x04", "is a zip archive"),
        (b"<!DOCTYPE html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
        (b"GGUF", "is a GGUF file"),
    ],
)
def test_what_is_given_in_place_of_a_tar_is_told(
    beginning: bytes, fill: bytes, told: str, target: Path
) -> None:
    with pytest.raises(DamagedTar, match=told):
        unpack(io.BytesIO(beginning + fill), target)


def test_the_tar_of_a_folder_is_told_with_how_to_pack_its_content(target: Path) -> None:
    tar = handmade_tar([("my/config.json", b""), ("my/a/b", b"")])
    with pytest.raises(EngineNotFound, match=r"in a folder, 'my'; .*tar -C my -cf engine\.tar"):
        unpack(io.BytesIO(tar), target)


def _header(name: str, size_bytes: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    info.type = kind
    return info.tobuf(tarfile.GNU_FORMAT)


def test_a_size_that_cannot_follow_is_refused_before_a_byte_is_written(target: Path) -> None:
    tar = _header("rank0.engine", 1 << 60) + bytes(4096)
    with pytest.raises(DamagedTar, match="should have 1152921504606846976 bytes"):
        unpack(io.BytesIO(tar), target, size_bytes=len(tar))
    with pytest.raises(Exception, match="E1310"):
        unpack(io.BytesIO(tar), target)


def test_a_negative_size_is_refused(target: Path) -> None:
    header = bytearray(_header("rank0.engine", 0))
    header[124:136] = b"\xff" * 12
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with pytest.raises(DamagedTar, match=r"claims -"):
        unpack(io.BytesIO(bytes(header) + bytes(1024)), target)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_extension_header_does_not_fill_memory(kind: bytes, target: Path) -> None:
    class Endless(io.BytesIO):
        """The header, and then as many bytes as anybody reads."""

        given_bytes = 0

        def readinto(self, buffer: object, /) -> int:
            assert isinstance(buffer, memoryview)
            self.given_bytes += len(buffer)
            return super().readinto(buffer) or len(buffer)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stream = Endless(_header("bomb", 8 << 30, kind))
    with pytest.raises(DamagedTar, match="claims 8589934592 bytes"):
        unpack(stream, target)
    assert stream.given_bytes <= BUFFER_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_malformed_pax_header_is_refused(target: Path) -> None:
    lines = ("0 path=x\n", "-5 path=x\n", "99 path=x\n", "path=x\n", "9 path=x ", "10 size=1e\n", "5 a\n")
    for each in map(str.encode, lines):
        extension = _header("x", len(each), tarfile.XHDTYPE) + each.ljust(512, b"\0")
        tar = extension + _header("y", 0) + bytes(1024)
        with pytest.raises(DamagedTar, match="E1309"):
            unpack(io.BytesIO(tar), target)


def test_a_pax_header_overrides_no_check(target: Path) -> None:
    for headers in ({"path": "../victim"}, {"path": "/victim"}, {"GNU.sparse.major": "1"}):
        info = tarfile.TarInfo("harmless")
        info.pax_headers = headers
        with pytest.raises(UnsafeTarMember):
            unpack(io.BytesIO(handmade_tar([(info, b"x")], tarfile.PAX_FORMAT)), target)


def test_members_and_headers_without_end_are_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tar.archive.MAX_MEMBERS", 50)
    for header in (_header("d", 0, tarfile.DIRTYPE), _header("c", 0, tarfile.XGLTYPE)):
        with pytest.raises(DamagedTar, match="more than 50 members"):
            unpack(io.BytesIO(header * 100), target)
