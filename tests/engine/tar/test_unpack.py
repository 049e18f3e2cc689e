import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from engine.directory import load
from engine.tar.compression import MAX_RATIO, plain_tar
from engine.tar.unpack import unpack
from errors.engine_tar import (
    DamagedTar,
    EngineFileDamaged,
    EngineFileMissing,
    EngineNotFound,
    EngineNotWritable,
    NoSpaceLeft,
    UnexpectedEngineFile,
)
from tests.engine.samples import (
    FILES,
    LEGACY_FILES,
    error_on_full_disk,
    everything_in,
    handmade_tar,
    legacy_tar,
    packed,
    read_files,
)


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return packed(tmp_path).read_bytes()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "engine"


def _repacked(tar: bytes, change: dict[str, bytes | None]) -> bytes:
    """Return the same tar with some members changed, added or (None) left out; the manifest stays."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        members: dict[str, bytes | None] = {}
        for member in opened.getmembers():
            file = opened.extractfile(member)
            members[member.name] = file.read() if file else b""
    members |= change
    return handmade_tar((name, content) for name, content in members.items() if content is not None)


def test_what_was_packed_comes_out(tar: bytes, target: Path) -> None:
    manifest = unpack(io.BytesIO(tar), target)
    assert read_files(target) == FILES
    assert load(target).manifest == manifest
    assert load(target).warnings == ()
    assert list(target.parent.iterdir()) == [target]


def test_a_gzipped_tar_comes_out_the_same_through_a_pipe_and_progress_counts_the_tar(
    tar: bytes, target: Path, tmp_path: Path
) -> None:
    half = len(tar) // 2
    (tmp_path / "engine.tar").write_bytes(gzip.compress(tar[:half]) + gzip.compress(tar[half:]))
    with subprocess.Popen(["cat", tmp_path / "engine.tar"], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        unpack(cat.stdout, target)  # a BufferedReader, which IO[bytes] does not tell
    assert read_files(target) == FILES
    calls: list[tuple[int, int | None, str]] = []
    other = tmp_path / "other"
    unpack(io.BytesIO(tar), other, size_bytes=len(tar), progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert {(total, what) for _, total, what in calls} == {(len(tar), "unpacking")}


def test_a_tar_made_by_hand_from_an_unpacked_engine_is_as_good(
    tar: bytes, target: Path, tmp_path: Path
) -> None:
    unpack(io.BytesIO(tar), target)
    for tar_format in ("gnu", "posix", "ustar"):
        made = tmp_path / f"{tar_format}.tar"
        subprocess.run(["tar", "cf", made, f"--format={tar_format}", "-C", target, "."], check=True)
        with made.open("rb") as file:
            unpack(file, tmp_path / tar_format)
        assert read_files(tmp_path / tar_format) == FILES


def test_an_original_tar_without_manifest_is_accepted_and_described(target: Path) -> None:
    manifest = unpack(io.BytesIO(legacy_tar()), target)
    assert read_files(target) == LEGACY_FILES
    assert (manifest.engine_kind, manifest.world_size, manifest.max_seq_len) == ("tensorrt_llm", 2, 2048)
    assert manifest.files["rank0.engine"].sha256 is not None
    assert load(target).warnings


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model.safetensors": bytes(FILES["model.safetensors"][:-1]) + b"\0"}, EngineFileDamaged),
        ({"model.safetensors": b"short"}, EngineFileDamaged),
        ({"config.json": None}, EngineFileMissing),
        ({"extra.bin": b"x"}, UnexpectedEngineFile),
    ],
)
def test_a_tar_that_differs_from_its_manifest_is_refused(
    tar: bytes, target: Path, change: dict[str, bytes | None], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        unpack(io.BytesIO(_repacked(tar, change)), target)
    assert next(iter(change)) in str(caught.value)
    assert everything_in(target.parent) == []


def test_what_is_no_tar_or_a_tar_of_something_else_is_said_so(target: Path) -> None:
    for content in (
        b"",
        b"<html>404</html>" * 100,
        b"\x1f\x8b nonsense",
        b"\0" * 512,
        b"PK\3\4" + bytes(600),
    ):
        with pytest.raises(DamagedTar, match="E1309"):
            unpack(io.BytesIO(content), target)
    for members in ([], [("holiday.jpg", b"x")], [("config.json", b"{}")]):
        with pytest.raises(EngineNotFound, match="E1301"):
            unpack(io.BytesIO(handmade_tar(members)), target)
    assert everything_in(target.parent) == []


def test_an_existing_engine_is_not_overwritten(tar: bytes, target: Path) -> None:
    target.mkdir(parents=True)
    unpack(io.BytesIO(tar), target)
    with pytest.raises(EngineNotWritable, match="exists already"):
        unpack(io.BytesIO(tar), target)
    assert read_files(target) == FILES


def test_a_stream_that_breaks_leaves_nothing(tar: bytes, target: Path) -> None:
    class Broken(io.BytesIO):
        def readinto(self, buffer: object, /) -> int:
            if self.tell() > len(tar) // 2:
                raise OSError(5, "Input/output error")
            return super().readinto(buffer)

    with pytest.raises(Exception, match=r"E1312.*Input/output error"):
        unpack(Broken(tar), target)
    assert everything_in(target.parent) == []


def test_a_tar_too_big_for_the_disk_is_refused_at_once(tar: bytes, target: Path) -> None:
    with pytest.raises(NoSpaceLeft, match=r"it needs [\d.]+ \wiB, .* are free"):
        unpack(io.BytesIO(tar), target, size_bytes=1 << 62)
    assert everything_in(target.parent) == []


def test_a_disk_that_fills_up_is_a_coded_error_and_leaves_nothing(tar: bytes, tmp_path: Path) -> None:
    code = "from engine.tar.unpack import unpack; from pathlib import Path\n"
    code += "unpack(sys.stdin.buffer, Path(sys.argv[1]))"
    target = tmp_path / "out" / "engine"
    assert "E1310 NoSpaceLeft" in error_on_full_disk(code, target, stdin=tar)
    assert everything_in(target.parent) == []


def test_a_gzip_bomb_is_stopped_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tar.compression.FREE_OUTPUT_BYTES", 10 << 20)
    bomb = gzip.compress(bytes(4 << 20)) * 50
    tar = plain_tar(io.BytesIO(bomb), "bomb.tar.gz")
    sizes: list[int] = []

    def read_all() -> None:
        buffer = memoryview(bytearray(1 << 20))
        while count := tar.readinto(buffer):
            sizes.append(count)

    with pytest.raises(DamagedTar, match="unzips to more than"):
        read_all()
    assert sum(sizes) <= (10 << 20) + MAX_RATIO * len(bomb)
