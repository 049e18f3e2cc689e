"""Several processes on one cache, and killed ones: no half engine is ever taken for a whole one."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.cache.store import open_engine
from engine.lock import locked, try_locked
from engine.staging import staged
from engine.tar.unpack import unpack
from tests.engine.samples import FILES, everything_in, packed, read_files
from tests.engine.tar_server import Fault, Request, TarServer

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


def test_a_process_killed_while_it_unpacks_leaves_nothing_that_looks_whole(
    server: TarServer, tar: bytes, tmp_path: Path
) -> None:
    server.content = tar
    server.has_ranges = False
    reached, killed = threading.Event(), threading.Event()

    def stall_in_the_middle(request: Request) -> Fault | None:
        if request.number > 0:
            return None
        reached.set()
        return Fault(body_bytes=len(tar) // 2, hold=killed)

    server.fault = stall_in_the_middle
    cache = tmp_path / "cache"
    process = _start(OPEN, server.url, cache)
    assert reached.wait(240)
    _await_file(cache, "model.safetensors", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed.set()
    left = everything_in(cache / "engines")
    assert any("staged" in name and name.endswith("model.safetensors") for name in left)
    assert not any("staged" not in name for name in left if not name.endswith(".lock"))

    engine = open_engine(server.url, cache)
    assert read_files(engine.path) == BIG_FILES
    assert list((cache / "engines").iterdir()) == [engine.path]


def _await_file(folder: Path, name: str, process: subprocess.Popen[str]) -> None:
    """Until the process has begun to write it; it is held up after that."""
    while process.poll() is None and not any(path.stat().st_size for path in folder.rglob(name)):
        pass
    assert process.returncode is None


def test_a_waiting_process_unpacks_itself_when_the_first_one_dies(
    server: TarServer, tar: bytes, tmp_path: Path
) -> None:
    server.content = tar
    server.has_ranges = False
    hold = threading.Event()
    server.fault = lambda request: Fault(body_bytes=len(tar) // 2, hold=hold) if request.number == 0 else None
    cache = tmp_path / "cache"
    first = _start(OPEN, server.url, cache)
    _await_file(cache, "model.safetensors", first)
    waits = threading.Event()
    engines: list[Path] = []

    def open_second() -> None:
        def tell(done: int, total: int | None, what: str, /) -> None:
            if what.startswith("waiting"):
                waits.set()

        engines.append(open_engine(server.url, cache, progress=tell).path)

    second = threading.Thread(target=open_second)
    second.start()
    assert waits.wait(240)
    first.kill()
    first.wait()
    hold.set()
    second.join(240)
    assert read_files(engines[0]) == BIG_FILES


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
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with try_locked(path) as is_ours:
            assert not is_ours
        holder.kill()
    with locked(path), try_locked(path) as is_ours:
        assert not is_ours
    assert not path.exists()


def test_a_lock_is_never_held_by_two(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(100):
            with locked(path):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
