"""Several processes on one cache, and killed ones: no half engine is ever taken for a whole one."""

import io
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.cache.store import open_engine
from engine.lock import locked, try_locked
from engine.staging import staged
from engine.tar.unpack import unpack
from tests.engine.samples import FILES, everything_in, packed, read_files
from tests.engine.tar_server import Fault, TarServer

BIG_FILES = {**FILES, "model.safetensors": os.urandom(4 << 20)}

OPEN = """
import sys; from pathlib import Path
from engine.cache.store import open_engine
print(open_engine(sys.argv[1], Path(sys.argv[2])).path, flush=True)
"""


def _start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return packed(tmp_path, BIG_FILES).read_bytes()


def test_a_process_killed_while_it_unpacks_leaves_nothing_that_looks_whole_and_a_waiting_one_unpacks_itself(
    server: TarServer, tar: bytes, tmp_path: Path
) -> None:
    server.content = tar
    server.has_ranges = False
    killed, waits = threading.Event(), threading.Event()
    server.fault = lambda asked: Fault(body_bytes=len(tar) // 2, hold=killed) if asked.number == 0 else None
    cache = tmp_path / "cache"
    first = _start(OPEN, server.url, cache)
    _await_file(cache, "model.safetensors", first)

    def tell(done: int, total: int | None, what: str, /) -> None:
        if what.startswith("waiting"):
            waits.set()

    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: open_engine(server.url, cache, progress=tell).path)
        assert waits.wait(240)
        left = everything_in(cache / "engines")
        assert any("staged" in name and name.endswith("model.safetensors") for name in left)
        assert not any("staged" not in name for name in left if not name.endswith(".lock"))
        first.kill()
        first.wait()
        killed.set()
        engine = second.result(240)
    assert read_files(engine) == BIG_FILES
    assert list((cache / "engines").iterdir()) == [engine]


def _await_file(folder: Path, name: str, process: subprocess.Popen[str]) -> None:
    """Until the process has begun to write it; it is held up after that."""
    while process.poll() is None and not any(path.stat().st_size for path in folder.rglob(name)):
        pass
    assert process.returncode is None


def test_what_a_living_process_is_making_is_left_alone(tar: bytes, tmp_path: Path) -> None:
    with staged(tmp_path / "engine") as making:
        making.mkdir()
        (making / "file").write_text("x")
        unpack(io.BytesIO(tar), tmp_path / "other")
        assert (making / "file").read_text() == "x"
    assert (tmp_path / "engine" / "file").read_text() == "x"


def test_a_lock_has_one_holder_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys, pathlib, time; from engine.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)\n"
    )
    with _start(program, path) as holder:
        assert holder.stdout.readline() == "locked\n"
        with try_locked(path) as is_ours:
            assert not is_ours
        holder.kill()
    with locked(path), try_locked(path) as is_ours:
        assert not is_ours
    assert not path.exists()


def test_a_lock_is_never_held_by_two(tmp_path: Path) -> None:
    holders: list[int] = []
    counts: set[int] = set()

    def work(number: int) -> None:
        for _ in range(100):
            with locked(tmp_path / "lock"):
                holders.append(number)
                time.sleep(0)
                counts.add(len(holders))
                holders.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert counts == {1}
