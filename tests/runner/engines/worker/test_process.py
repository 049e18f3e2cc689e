"""The engine worker as a real process: what it answers, and how it dies, restarts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from runner.engines.worker.command import EngineCommand
from runner.engines.worker.process import EngineProcess

from engine.machine.root import SOURCE_ROOT
from errors.engines import EngineCrashed, EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.messages import Cancel, Submit
from runner.engines.worker import process as process_module
from tests.runner.engines.listening import Listening, make_paced_directory
from tests.runner.servers import is_running, wait_until, worker_pids

SLOT = """
import sys, pathlib
from runner.engines.worker.command import EngineCommand
from runner.engines.worker.process import EngineProcess
engine = EngineProcess(EngineCommand(sys.executable, "paced", pathlib.Path(sys.argv[1])), None)
engine.start()
print(engine.pid, flush=True)
sys.stdin.read()
"""
"""A slot with a worker; it prints the worker's process id and waits."""


def command(engine_dir: Path, **options: str) -> EngineCommand:
    return EngineCommand(sys.executable, "paced", engine_dir, options)


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    return make_paced_directory(tmp_path / "engine", 1000)


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def engine(engine_dir: Path, listening: Listening) -> Iterator[EngineProcess]:
    engine = EngineProcess(command(engine_dir), listening)
    engine.start()
    yield engine
    engine.stop()
    assert worker_pids(engine_dir) == []


def test_a_request_gets_all_its_tokens_and_one_end(engine: EngineProcess, listening: Listening) -> None:
    engine.send(Submit(1, input_ids=[5, 6, 7], max_tokens=8))
    engine.send(Submit(2, input_ids=[9], max_tokens=3))
    listening.wait_for_end(1)
    listening.wait_for_end(2)
    assert listening.tokens(1) == [5, 6, 7, 5, 6, 7, 5, 6]
    assert listening.tokens(2) == [9, 9, 9]
    assert listening.ends(1) == listening.ends(2) == ["length"]


def test_a_cancelled_request_ends_once_however_often_it_is_cancelled(
    engine: EngineProcess, listening: Listening
) -> None:
    engine.send(Submit(1, input_ids=[5], max_tokens=90_000))
    listening.wait_for(lambda: listening.tokens(1))
    for _ in range(3):
        engine.send(Cancel(1))
    listening.wait_for_end(1)
    engine.send(Submit(2, input_ids=[6], max_tokens=5))
    listening.wait_for_end(2)
    engine.send(Cancel(2))
    engine.send(Submit(3, input_ids=[6], max_tokens=5))
    listening.wait_for_end(3)
    assert listening.ends(1) == ["cancelled"]
    assert listening.ends(2) == listening.ends(3) == ["length"]


def test_a_cancel_that_comes_before_its_request_or_for_none_does_nothing(
    engine: EngineProcess, listening: Listening
) -> None:
    engine.send(Cancel(1))
    engine.send(Cancel(4711))
    engine.send(Submit(1, input_ids=[5], max_tokens=4))
    listening.wait_for_end(1)
    assert listening.ends(1) == ["length"]
    assert listening.ends(4711) == []


def test_a_request_cancelled_at_once_ends_once(engine: EngineProcess, listening: Listening) -> None:
    for number in range(1, 200):
        engine.send(Submit(number, input_ids=[5], max_tokens=2))
        engine.send(Cancel(number))
    for number in range(1, 200):
        listening.wait_for_end(number)
    assert all(len(listening.ends(number)) == 1 for number in range(1, 200))


def test_the_worker_tells_how_much_it_holds(engine: EngineProcess, listening: Listening) -> None:
    engine.send(Submit(1, input_ids=[5], max_tokens=90_000))
    listening.wait_for(lambda: any(each.active == 1 for each in listening.statistics()))
    engine.send(Cancel(1))
    listening.wait_for(lambda: listening.statistics()[-1].active == 0)


def test_a_killed_worker_is_told_once_and_started_again(engine: EngineProcess, listening: Listening) -> None:
    engine.send(Submit(1, input_ids=[5], max_tokens=90_000))
    listening.wait_for(lambda: listening.tokens(1))
    first = engine.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    listening.wait_for(lambda: listening.losses)
    wait_until(lambda: engine.is_ready)
    assert engine.pid not in (None, first)
    assert engine.restarts == 1
    engine.send(Submit(2, input_ids=[6], max_tokens=3))
    listening.wait_for_end(2)
    assert listening.tokens(2) == [6, 6, 6]
    assert [type(error) for error in listening.losses] == [EngineCrashed]
    assert "SIGKILL" in str(listening.losses[0])
    assert listening.ends(1) == []


def test_while_there_is_no_worker_nothing_can_be_sent(
    engine: EngineProcess, engine_dir: Path, listening: Listening
) -> None:
    (engine_dir / "paced.json").rename(engine_dir / "away.json")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    listening.wait_for(lambda: listening.losses)
    with pytest.raises(EngineCrashed, match="E2107"):
        engine.send(Cancel(1))
    (engine_dir / "away.json").rename(engine_dir / "paced.json")
    wait_until(lambda: engine.is_ready)
    engine.send(Submit(2, input_ids=[6], max_tokens=3))
    listening.wait_for_end(2)


def test_a_worker_that_dies_again_and_again_comes_back_each_time(
    engine: EngineProcess, listening: Listening
) -> None:
    for times in range(1, 4):
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        wait_until(partial(restarted, engine, times))
    assert len(listening.losses) == 3


def restarted(engine: EngineProcess, times: int) -> bool:
    return engine.restarts == times and engine.is_ready


@pytest.mark.parametrize(
    ("tokens_per_second", "options", "error", "says"),
    [
        (-1, {}, InvalidSetting, "E1006 InvalidSetting: tokens_per_second"),
        (100, {"tokens_per_second": "fast"}, InvalidSetting, "'fast'"),
        ({"a": 1}, {}, InvalidSetting, "tokens_per_second"),
        (100, {"max_batch_size": "many"}, EngineStartFailed, "E2108 EngineStartFailed: The paced engine"),
    ],
)
def test_why_an_engine_does_not_load_keeps_its_code(
    tmp_path: Path,
    listening: Listening,
    tokens_per_second: object,
    options: dict[str, str],
    error: type[Exception],
    says: str,
) -> None:
    engine_dir = make_paced_directory(tmp_path / "engine", tokens_per_second)
    with pytest.raises(error, match=says):
        EngineProcess(command(engine_dir, **options), listening).start()
    assert worker_pids(engine_dir) == []


def test_an_unknown_engine_kind_names_the_known_ones(engine_dir: Path, listening: Listening) -> None:
    with pytest.raises(InvalidSetting, match="one of tensorrt_llm, "):
        EngineProcess(EngineCommand(sys.executable, "onnx", engine_dir), listening).start()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "can't be run"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "SIGKILL"),
        ("exec sleep 60", "not ready"),
    ],
)
def test_a_python_that_is_none_is_told(
    tmp_path: Path,
    engine_dir: Path,
    listening: Listening,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    says: str,
) -> None:
    monkeypatch.setattr(process_module, "_END_S", 0.2)
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    engine = EngineProcess(EngineCommand(str(python), "paced", engine_dir, start_timeout_s=0.5), listening)
    with pytest.raises(EngineStartFailed, match=says):
        engine.start()
    assert engine.pid is None
    assert not engine.is_ready


def test_stopping_leaves_no_process(engine_dir: Path, listening: Listening) -> None:
    engine = EngineProcess(command(engine_dir), listening)
    engine.start()
    engine.send(Submit(1, input_ids=[5], max_tokens=90_000))
    engine.stop()
    assert engine.pid is None
    assert worker_pids(engine_dir) == []
    assert listening.losses == []
    engine.stop()


def test_stopping_while_the_worker_can_not_be_started_again_leaves_no_process(
    engine: EngineProcess, engine_dir: Path, listening: Listening
) -> None:
    (engine_dir / "paced.json").unlink()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    listening.wait_for(lambda: listening.losses)
    wait_until(lambda: engine.restarts >= 1)
    engine.stop()
    wait_until(lambda: worker_pids(engine_dir) == [])
    assert not engine.is_ready


def test_a_worker_that_hangs_blocks_neither_senders_for_ever_nor_stopping(
    engine: EngineProcess, engine_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_STOP_GRACE_S", 0.2)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGSTOP)
    failed: list[EngineCrashed] = []

    def fill() -> None:
        try:
            while True:
                engine.send(Submit(1, input_ids=[5] * 10_000, max_tokens=1))
        except EngineCrashed as error:
            failed.append(error)

    filling = threading.Thread(target=fill)
    filling.start()
    filling.join(0.2)
    engine.stop()
    filling.join(10)
    assert not filling.is_alive()
    assert len(failed) == 1
    assert worker_pids(engine_dir) == []


@pytest.mark.parametrize("hangs", [False, True], ids=["working", "hanging"])
def test_a_worker_does_not_outlive_a_killed_slot(engine_dir: Path, hangs: bool) -> None:
    slot = subprocess.Popen(
        [sys.executable, "-c", SLOT, str(engine_dir)],
        env=dict(os.environ, PYTHONPATH=str(SOURCE_ROOT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with slot:
        assert slot.stdout is not None
        worker = int(slot.stdout.readline())
        if hangs:
            os.kill(worker, signal.SIGSTOP)
        slot.kill()
    wait_until(lambda: not is_running(worker))


def test_the_workers_libraries_are_its_own(engine_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/for/triton")
    monkeypatch.setenv("PYTHONHOME", "/for/triton")
    assert "LD_LIBRARY_PATH" not in command(engine_dir).environment()
    assert "PYTHONHOME" not in command(engine_dir).environment()
    monkeypatch.setenv("COG_TRITON_ENGINE_LD_LIBRARY_PATH", "/as/it/was")
    assert command(engine_dir).environment()["LD_LIBRARY_PATH"] == "/as/it/was"


@pytest.mark.parametrize(("set_to", "threads"), [(None, "1"), ("4", "4")])
def test_vllm_has_one_thread_beside_its_gpu_unless_told_otherwise(
    engine_dir: Path, monkeypatch: pytest.MonkeyPatch, set_to: str | None, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_to:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    vllm = EngineCommand(sys.executable, "vllm", engine_dir)
    assert vllm.environment()["OMP_NUM_THREADS"] == threads
    assert command(engine_dir).environment().get("OMP_NUM_THREADS") == set_to
