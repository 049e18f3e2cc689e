"""Two ranks under a real mpirun: they serve as one, and the end of any process ends all, with the log."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.engines.worker.command import EngineCommand
from runner.engines.worker.process import EngineProcess

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineStartFailed, RankEnded
from errors.settings import MissingRequirement
from runner.engines.protocol.messages import Sampling, Submit
from tests.runner.engines.listening import Listening
from tests.runner.servers import command_of, is_running, wait_until
from tests.runner.tensorrt_llm_engine import write_engine, write_engine_python

GREEDY = Sampling(top_k=1)


class TwoRanks:
    """An engine of two ranks, started as the slot does."""

    def __init__(self, folder: Path, **rank: object) -> None:
        self.directory = write_engine(folder / "engine", vocab_size=320, world_size=2, **rank)
        self.listening = Listening()
        python = str(write_engine_python(folder))
        command = EngineCommand(python, "tensorrt_llm", self.directory, start_timeout_s=60)
        self.process = EngineProcess(command, self.listening)

    def pids(self) -> dict[str, int]:
        """Of the launcher, mpirun and the ranks."""
        running = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        names = {pid: self._name(pid) for pid in running}
        return {name: pid for pid, name in names.items() if name is not None}

    def _name(self, pid: int) -> str | None:
        """None if the process is none of this engine's, or has ended."""
        command = f"{command_of(pid)} "
        if f"--engine-dir {self.directory} " not in command:
            return None
        if "runner.engines.worker.main" in command:
            return "launcher"
        return "mpirun" if command.split()[0].endswith("mpirun") else _rank_of(pid)


def _rank_of(pid: int) -> str | None:
    prefix = b"OMPI_COMM_WORLD_RANK="
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None  # It ended before we looked.
    ranks = [each.removeprefix(prefix).decode() for each in environment if each.startswith(prefix)]
    return f"rank {ranks[0]}" if ranks else None


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[TwoRanks]:
    two = TwoRanks(tmp_path)
    yield two
    two.process.stop()
    wait_until(lambda: not two.pids())


@pytest.mark.needs_mpirun
def test_two_ranks_serve_as_one_engine_and_end_with_it(ranks: TwoRanks) -> None:
    ready = ranks.process.start()
    assert ready.engine_kind == "tensorrt_llm"
    pids = ranks.pids()
    assert set(pids) == {"launcher", "mpirun", "rank 0", "rank 1"}
    ranks.process.send(Submit(1, [5, 6], 20, GREEDY))
    ranks.listening.wait_for_end(1)
    assert ranks.listening.tokens(1) == [5, 6] * 10
    ranks.process.stop()
    wait_until(lambda: not any(map(is_running, pids.values())))


@pytest.mark.needs_mpirun
@pytest.mark.parametrize("victim", ["rank 0", "rank 1", "mpirun", "launcher"])
def test_whoever_is_killed_all_end_the_request_fails_and_others_start(ranks: TwoRanks, victim: str) -> None:
    ranks.process.start()
    before = ranks.pids()
    ranks.process.send(Submit(1, [5], 500, GREEDY))
    ranks.listening.wait_for(lambda: ranks.listening.tokens(1))
    os.kill(before[victim], signal.SIGKILL)
    start_s = time.monotonic()
    ranks.listening.wait_for(lambda: ranks.listening.losses)
    print(f"{victim}, SIGKILL: told after {time.monotonic() - start_s:.2f} s")
    wait_until(lambda: not any(map(is_running, before.values())))
    assert isinstance(ranks.listening.losses[0], EngineCrashed if victim == "launcher" else RankEnded)
    if victim.startswith("rank"):
        assert f"rank {victim[-1]}" in str(ranks.listening.losses[0])
        assert "Killed" in str(ranks.listening.losses[0])
    wait_until(lambda: ranks.process.is_ready)
    ranks.process.send(Submit(2, [7], 3, GREEDY))
    ranks.listening.wait_for_end(2)
    assert ranks.listening.tokens(2) == [7, 7, 7]


@pytest.mark.needs_mpirun
@pytest.mark.parametrize("victim", ["rank 1", "launcher"])
def test_whoever_is_stopped_all_end_the_request_fails_and_others_start(ranks: TwoRanks, victim: str) -> None:
    ranks.process.start()
    before = ranks.pids()
    ranks.process.send(Submit(1, [5], 500, GREEDY))
    ranks.listening.wait_for(lambda: ranks.listening.tokens(1))
    os.kill(before[victim], signal.SIGSTOP)
    start_s = time.monotonic()
    ranks.listening.wait_for(lambda: ranks.listening.losses)
    print(f"{victim}, SIGSTOP: told after {time.monotonic() - start_s:.2f} s")
    assert "stopped (SIGSTOP)" in str(ranks.listening.losses[0])
    wait_until(lambda: not any(map(is_running, before.values())))
    wait_until(lambda: ranks.process.is_ready)
    ranks.process.send(Submit(2, [7], 3, GREEDY))
    ranks.listening.wait_for_end(2)


@pytest.mark.needs_mpirun
@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_that_does_not_load_is_told_with_its_reason(tmp_path: Path, broken: int) -> None:
    two = TwoRanks(tmp_path, broken_rank=broken)
    with pytest.raises(CodedError, match=r"CUDA runtime error in cudaMalloc: out of memory") as raised:
        two.process.start()
    assert isinstance(raised.value, EngineStartFailed)
    assert "\n" not in str(raised.value)
    wait_until(lambda: not two.pids())


def test_without_mpirun_it_is_e1008_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("env", "sh", "dirname"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MissingRequirement, match=r"E1008 .*mpirun.*apt-get install openmpi-bin"):
        TwoRanks(tmp_path).process.start()
