"""Two ranks under a real mpirun: they serve as one, and the end of any process ends all."""

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from errors.engines import EngineCrashed, EngineStartFailed, RankEnded
from errors.settings import MissingRequirement
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.server.start import EngineStart
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening
from tests.runner.engines.server.supervised import WAIT_S, exhaust, supervised
from tests.runner.servers import command_of, is_running, wait_until
from tests.runner.tensorrt_llm_engine import write_engine, write_engine_python

pytestmark = pytest.mark.servers

GREEDY = Sampling(top_k=1)


class TwoRanks:
    """An engine of two ranks and its engine server."""

    def __init__(self, folder: Path, **rank: Any) -> None:
        self.directory = write_engine(folder / "model", vocab_size=320, world_size=2, **rank)
        python = str(write_engine_python(folder))
        self.server = EngineServerUnderTest("tensorrt_llm", self.directory, {}, folder, python=python)

    def pids(self) -> dict[str, int]:
        return pids_of(self.directory)


def pids_of(folder: Path) -> dict[str, int]:
    running = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    commands = {pid: command for pid in running if f'"engine_dir":"{folder}' in (command := command_of(pid))}
    names = {
        pid: "mpirun" if command.split()[0].endswith("mpirun") else _rank_of(pid)
        for pid, command in commands.items()
    }
    return {name: pid for pid, name in names.items() if name is not None}


def _rank_of(pid: int) -> str | None:
    """None if the process is none of this engine's, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return None
    rank = re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)", environment)
    return f"rank {rank[1]}" if rank else None


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TwoRanks]:
    two = TwoRanks(tmp_path)
    yield two
    two.server.stop()
    wait_until(lambda: not two.pids())


@pytest.mark.needs_mpirun
def test_two_ranks_serve_as_one_engine_and_end_with_it(ranks: TwoRanks) -> None:
    with Listening(ranks.server) as client:
        assert client.ready.engine_kind == "tensorrt_llm"
        pids = ranks.pids()
        assert set(pids) == {"mpirun", "rank 0", "rank 1"}
        assert client.answer(Submit(1, [5, 6], 20, GREEDY)) == ([5, 6] * 10, "length")
        ranks.server.process.terminate()
        assert ranks.server.exit_code() == 0
    wait_until(lambda: not any(map(is_running, pids.values())))


@pytest.mark.needs_mpirun
@pytest.mark.parametrize("victim", ["rank 1", "mpirun", "engine server"])
def test_whichever_process_is_killed_all_end_and_the_request_fails(ranks: TwoRanks, victim: str) -> None:
    with Listening(ranks.server) as client:
        pids = ranks.pids() | {"engine server": ranks.server.process.pid}
        client.send(Submit(1, [5], 500, GREEDY))
        client.wait_for_tokens(1)
        start_s = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        client.wait_for_close()
        print(f"{victim}, SIGKILL: reported after {time.monotonic() - start_s:.2f} s")
        ranks.server.exit_code()
        wait_until(lambda: not any(map(is_running, pids.values())))
        left = ranks.server.exit_reason.read()
        if victim == "engine server":
            assert (client.ends(1), left) == ([], None)
            return
        assert client.ends(1) == [str(left)]
        assert isinstance(left, RankEnded)
        if victim.startswith("rank"):
            assert f"rank {victim[-1]}" in str(left)
            assert "Killed" in str(left)
    ranks.server.start()
    with Listening(ranks.server) as client:
        assert client.answer(Submit(2, [7], 3, GREEDY)) == ([7, 7, 7], "length")


@pytest.mark.needs_mpirun
async def test_where_a_rank_is_stopped_all_end_the_request_fails_and_others_start(tmp_path: Path) -> None:
    directory = write_engine(tmp_path / "model", vocab_size=320, world_size=2)
    announce(tmp_path / "arrival", Arrived((0,), 0))
    python = str(write_engine_python(tmp_path))
    async with supervised(EngineStart("tensorrt_llm", directory, {}, tmp_path / "arrival"), python) as it:
        server = it.server.pid
        assert server is not None
        pids = pids_of(directory) | {"engine server": server}
        outputs = it.client.generate(Submit(1, [5], 500, GREEDY))
        await anext(outputs)
        os.kill(pids["rank 1"], signal.SIGSTOP)
        with pytest.raises(EngineCrashed):
            await exhaust(outputs)
        await asyncio.wait_for(it.until(server), WAIT_S)
        assert "stopped (SIGSTOP)" in it.failures[0].reason
        assert not any(map(is_running, pids.values()))
        assert await it.answer() == [5, 6] * 10


@pytest.mark.needs_mpirun
def test_a_rank_that_does_not_load_is_told_with_its_reason(tmp_path: Path) -> None:
    two = TwoRanks(tmp_path, broken_rank=1)
    assert two.server.exit_code() == 1
    left = two.server.exit_reason.read()
    assert isinstance(left, EngineStartFailed)
    assert "CUDA runtime error in cudaMalloc: out of memory" in str(left)
    assert "\n" not in str(left)
    wait_until(lambda: not two.pids())
    two.server.stop()


def test_without_mpirun_it_is_e1008_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("env", "sh", "dirname"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    server = TwoRanks(tmp_path).server
    assert server.exit_code() == 1
    left = server.exit_reason.read()
    assert isinstance(left, MissingRequirement)
    assert re.search(r"E1008 .*mpirun.*apt-get install openmpi-bin", str(left))
    server.stop()
