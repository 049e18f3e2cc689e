"""Small files of a tar are written many at once: all of them as they were, and none hides a wrong one."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tar.archive import TarReader
from engine.tar.file_writer import SMALL_BYTES
from engine.tar.unpack import unpack
from engine.tar.window import BUFFER_BYTES, BUFFERS, Window
from errors.engine_tar import EngineFileDamaged, EngineNotWritable
from tests.engine.samples import FILES, everything_in, packed, read_files

_CHOICE = random.Random(7)
_SIZES = [0, 1, 511, 512, 513, 65_536, SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, BUFFER_BYTES + 1]
MANY = FILES | {
    f"part-{index % 7}/{index:04}.bin": os.urandom(_CHOICE.choice(_SIZES[:8])) for index in range(200)
}
MANY |= {f"large-{index}.bin": os.urandom(size) for index, size in enumerate(_SIZES)}


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return packed(tmp_path_factory.mktemp("many"), MANY).read_bytes()


class _Uneven(io.BytesIO):
    """A stream that gives what it has in steps of any size, as a network does."""

    def readinto(self, buffer: object, /) -> int:
        assert isinstance(buffer, memoryview)
        return super().readinto(buffer[: _CHOICE.choice([1, 700, 70_000, 5_000_000])])


@pytest.mark.parametrize("stream", [io.BytesIO, _Uneven])
def test_files_of_all_sizes_come_out_as_they_were(
    tar: bytes, tmp_path: Path, stream: type[io.BytesIO]
) -> None:
    unpack(stream(tar), tmp_path / "engine")
    assert read_files(tmp_path / "engine") == MANY


@pytest.mark.parametrize("name", ["part-3/0010.bin", "large-9.bin", "nested/deeper/notes.txt"])
def test_one_wrong_byte_among_many_files_is_found(tar: bytes, tmp_path: Path, name: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        at = opened.getmember(name).offset_data
    damaged = bytearray(tar)
    damaged[at] ^= 1
    with pytest.raises(EngineFileDamaged, match="sha256"):
        unpack(io.BytesIO(damaged), tmp_path / "out" / "engine")
    assert everything_in(tmp_path / "out") == []


def test_a_file_that_the_disk_refuses_among_many_is_named(
    tar: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *arguments: int, **more: int) -> int:
        if str(path) == "part-2/0009.bin":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **more)

    monkeypatch.setattr("engine.tar.unpack.os.open", refuse)
    with pytest.raises(EngineNotWritable, match=r"part-2/0009\.bin"):
        unpack(io.BytesIO(tar), tmp_path / "out" / "engine")
    monkeypatch.undo()
    assert everything_in(tmp_path / "out") == []


@settings(max_examples=50, deadline=None)
@given(
    size_bytes=st.integers(0, 3 * BUFFER_BYTES),
    steps=st.lists(st.integers(0, BUFFER_BYTES), min_size=1, max_size=40),
    holds=st.booleans(),
)
def test_a_window_shows_the_stream_as_it_is(size_bytes: int, steps: list[int], holds: bool) -> None:
    content = random.Random(size_bytes).randbytes(size_bytes)
    window = Window(_Uneven(content) if size_bytes % 2 else io.BytesIO(content))
    at = 0
    held: list[tuple[memoryview, int, object]] = []
    for index, step in enumerate(steps):
        seen = window.take(step) if index % 2 else window.take_some(step)
        assert seen == content[at : at + len(seen)]
        assert len(seen) == min(step, size_bytes - at) or not index % 2
        if holds and len({id(buffer) for _, _, buffer in held} | {id(window.buffer)}) < BUFFERS - 1:
            window.buffer.hold()
            held.append((seen, at, window.buffer))
        at += len(seen)
    for seen, start, _ in held:
        assert seen == content[start : start + len(seen)]


def test_unusual_headers_are_read_as_tarfile_reads_them() -> None:
    buffer = io.BytesIO()
    infos = []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        names = ("plain", "a/b/c", "x" * 99, "y" * 100, "d" * 90 + "/" + "e" * 90, "ümlaut", "tail ", " 7")
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid, info.mtime = 3, 0o755, 1000, 1.5e9
            infos.append((name, 3))
            tar.addfile(info, io.BytesIO(b"abc"))
    reader = TarReader(io.BytesIO(buffer.getvalue()), "x.tar")
    members = []
    while (member := reader.next_file()) is not None:
        members.append((member.name, member.size_bytes))
        assert reader.content() == b"abc"
    assert members == infos
