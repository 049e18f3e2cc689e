"""The process that waits for the core's work, without vLLM: what it can't import, it leaves."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.engines.vllm.core_process import CoreProcess

CONFIG = SimpleNamespace(parallel_config=SimpleNamespace(numa_bind=False))
BOUND = SimpleNamespace(parallel_config=SimpleNamespace(numa_bind=True))
VARIABLE = "STANDIN_SET_LATER"
DEADLINE_S = 240.0


def write_facts(path: Path, **_: Any) -> None:
    path.write_text(f"{os.getpid()} {os.environ[VARIABLE]}")


@pytest.fixture
def process() -> Iterator[CoreProcess]:
    process = CoreProcess()
    yield process
    process.release()
    process.join(DEADLINE_S)
    assert process.exitcode is not None


def make(process: CoreProcess, **changed: Any) -> Any:
    asked = {
        "target": write_facts,
        "name": "EngineCore",
        "vllm_config": CONFIG,
        "tensor_queue": None,
        **changed,
    }
    return process.make(asked.pop("target"), asked.pop("name"), asked)


def test_it_does_its_work_with_the_variables_of_then(
    process: CoreProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "known")
    assert make(process, path=tmp_path / "facts") is process
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == 0
    assert (tmp_path / "facts").read_text() == f"{process.pid} known"
    assert make(process) is not process


def test_that_it_was_killed_is_seen_by_its_exit_code(process: CoreProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(DEADLINE_S)
    make(process).start()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    "asked",
    [{"name": "EngineCore_DP0"}, {"vllm_config": BOUND}, {"tensor_queue": object()}],
    ids=lambda asked: next(iter(asked)),
)
def test_a_core_that_has_to_start_otherwise_is_another(process: CoreProcess, asked: dict[str, Any]) -> None:
    other = make(process, **asked)
    assert other is not process
    assert other.pid is None
