"""A cache with a limit forgets what was not used for the longest time, and never what is in use."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.lease import make_room
from engine.cache.store import open_engine
from engine.directory import Engine, file_sizes
from engine.staging import discard
from tests.engine.samples import FILES, packed, read_files

MIB = 1 << 20

HOLD = """
import sys; from pathlib import Path
from engine.cache.store import open_engine
engine = open_engine(sys.argv[1], Path(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four engines of a little more than 1 MiB each."""
    folder = tmp_path_factory.mktemp("tars")
    return [packed(folder / str(index), FILES | {"which": bytes([index])}) for index in range(4)]


def _open(tar: Path, cache: Path, limit_mib: float | None = 3.5) -> Engine:
    return open_engine(tar, cache, limit_bytes=None if limit_mib is None else int(limit_mib * MIB))


def _kept(cache: Path) -> list[int]:
    gc.collect()
    return sorted((path / "which").read_bytes()[0] for path in (cache / "engines").iterdir())


def _use_and_leave(tar: Path, cache: Path, limit_mib: float | None = 3.5) -> None:
    _open(tar, cache, limit_mib)


def test_the_longest_unused_goes_first(tars: list[Path], tmp_path: Path) -> None:
    for index in (0, 1, 2, 0):
        _use_and_leave(tars[index], tmp_path)
    assert _kept(tmp_path) == [0, 1, 2]
    _use_and_leave(tars[3], tmp_path)
    assert _kept(tmp_path) == [0, 2, 3]


def test_one_that_this_process_uses_stays(tars: list[Path], tmp_path: Path) -> None:
    first = _open(tars[0], tmp_path, 1.5)
    for tar in tars[1:]:
        _use_and_leave(tar, tmp_path, 1.5)
    assert _kept(tmp_path) == [0, 3]
    assert read_files(first.path)["which"] == b"\0"
    del first
    _use_and_leave(tars[1], tmp_path, 1.5)
    assert _kept(tmp_path) == [1]


def test_one_that_another_process_uses_stays_until_it_is_killed(tars: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tars[0]), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"open\n"
        _use_and_leave(tars[1], tmp_path, 0)
        assert _kept(tmp_path) == [0, 1]
        user.send_signal(signal.SIGKILL)
    _use_and_leave(tars[2], tmp_path, 0)
    assert _kept(tmp_path) == [2]


def test_a_forgotten_engine_is_fetched_again_whatever_the_limit(tars: list[Path], tmp_path: Path) -> None:
    for index, limit_mib in ((0, 1.5), (1, 1.5), (0, 0)):
        _use_and_leave(tars[index], tmp_path, limit_mib)
    assert _kept(tmp_path) == [0]


@pytest.mark.parametrize(
    "moment", ["before its size is read", "while its size is read", "before it is removed"]
)
def test_an_engine_that_another_process_removes_meanwhile_fails_no_start(
    tars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    for tar in tars[:2]:
        _use_and_leave(tar, tmp_path)
    gc.collect()
    first, second = sorted((tmp_path / "engines").iterdir(), key=lambda path: path.stat().st_mtime_ns)

    def sizes(folder: Path) -> Iterator[tuple[str, int]]:
        """``file_sizes``, during which another process, for which this stands in, removes ``first``."""
        if folder == first and moment == "before its size is read":
            discard(first)
        for number, found in enumerate(file_sizes(folder)):
            if folder == first and moment == "while its size is read" and number == 0:
                discard(first)
            yield found
        if folder == second and moment == "before it is removed":
            discard(first)

    monkeypatch.setattr("engine.cache.lease.file_sizes", sizes)
    monkeypatch.setattr("pathlib.Path.iterdir", lambda folder: iter([first, second]))
    make_room(tmp_path / "engines", MIB, int(2.5 * MIB))
    monkeypatch.undo()
    assert _kept(tmp_path) == [1]
    engine = _open(tars[2], tmp_path, 2.5)
    assert read_files(engine.path)["which"] == b"\2"


def test_an_engine_leaves_no_descriptor_open_once_it_is_not_used(tars: list[Path], tmp_path: Path) -> None:
    for _ in range(20):
        _use_and_leave(tars[0], tmp_path)
    gc.collect()
    # Other tests of this process have servers, whose connections come and go.
    links = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert [link for link in links if link.startswith(os.path.realpath(tmp_path))] == []
