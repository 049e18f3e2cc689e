"""A real disk that is too small, processes killed at any moment: an error or an engine, never half of one."""

import gzip
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.cache.store import open_engine
from errors.engine_tar import NoSpaceLeft
from tests.engine.samples import FILES, everything_in, packed, read_files
from tests.engine.tar_server import TarServer

MIB = 1 << 20
MANY = FILES | {f"part-{index:03}.bin": bytes([index]) * 30_000 for index in range(200)}
LARGE = FILES | {"rank0.engine": bytes(6 * MIB)}

Mount = Callable[[str], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a file system of its own with the options given; only root may."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("no right to mount a disk here")
        mounted.append(folder)
        return folder

    if not Path("/bin/mount").exists() or os.getuid():
        pytest.skip("only root may mount a disk")
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(("files", "is_gzipped"), [(MANY, True), (LARGE, True), (LARGE, False)])
def test_a_disk_that_is_full_is_e1310_and_keeps_what_it_had(
    small_disk: Mount, server: TarServer, tmp_path: Path, files: dict[str, bytes], is_gzipped: bool
) -> None:
    """Gzipped, nobody knows before how large it is: the disk fills up while files are written."""
    cache = small_disk("size=5m")
    kept = open_engine(packed(tmp_path / "kept"), cache)
    before = everything_in(cache)
    tar = packed(tmp_path / "new", files).read_bytes()
    server.content = gzip.compress(tar, 1) if is_gzipped else tar
    with pytest.raises(NoSpaceLeft, match="E1310"):
        open_engine(server.url, cache)
    assert everything_in(cache) == before
    assert read_files(kept.path) == FILES


def test_a_disk_without_room_for_more_files_is_e1310(small_disk: Mount, tmp_path: Path) -> None:
    cache = small_disk("size=50m,nr_inodes=60")
    with pytest.raises(NoSpaceLeft, match="E1310") as raised:
        open_engine(packed(tmp_path, MANY), cache)
    # Two threads write: any of them may be the first without room.
    assert any(f"/{name} has no room" in str(raised.value) for name in MANY)
    assert everything_in(cache) == ["engines", "sources"]


def test_a_limit_of_the_cache_makes_room_on_a_disk_that_is_full(small_disk: Mount, tmp_path: Path) -> None:
    cache = small_disk("size=9m")
    open_engine(packed(tmp_path / "old", MANY), cache)
    tar = packed(tmp_path / "new", LARGE)
    with pytest.raises(NoSpaceLeft):
        open_engine(tar, cache)
    assert read_files(open_engine(tar, cache, limit_bytes=8 * MIB).path) == LARGE
