"""The engine server as the runner supervises it: why it does not start, and that it is started again."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.kinds import KINDS, Kind, find_kind
from engine.machine.processes import descendants
from errors.engines import EngineCrashed, EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.client import EngineClient
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import engine_environment
from tests.runner.engines.listening import make_paced_directory
from tests.runner.engines.server.brittle import with_kinds
from tests.runner.engines.server.supervised import (
    LONG,
    WAIT_S,
    Supervised,
    exhaust,
    next_look,
    supervised,
)
from tests.runner.servers import is_running

pytestmark = pytest.mark.servers


@pytest.fixture
def command(tmp_path: Path) -> EngineStart:
    directory = make_paced_directory(tmp_path / "model", 1000)
    announce(tmp_path / "arrival", Arrived((0,), 0))
    return EngineStart("paced", directory, {}, tmp_path / "arrival")


async def test_a_killed_engine_server_is_started_again_and_serves(command: EngineStart) -> None:
    async with supervised(command) as it:
        for number in range(1, 4):
            pid = it.server.pid
            assert pid is not None
            outputs = it.client.generate(LONG)
            await anext(outputs)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineCrashed):
                await exhaust(outputs)
            await asyncio.wait_for(it.until(pid), WAIT_S)
            assert it.server.restarts == number
            assert await it.answer() == [5, 6] * 10
        assert ["SIGKILL" in failure.reason for failure in it.failures] == [True] * 3
        last = it.server.pid
    assert last is not None
    assert not is_running(last)


@pytest.mark.parametrize("victim", ["server", "child"])
async def test_a_stopped_process_of_an_engine_in_a_child_is_noticed(
    tmp_path: Path, command: EngineStart, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    path = with_kinds(tmp_path)["PYTHONPATH"]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    kind = Kind("paced_child", find_kind("paced").adapter, runs_in_child=True)
    monkeypatch.setitem(KINDS, kind.name, kind)
    async with supervised(replace(command, engine_kind=kind.name), str(python)) as it:
        server = it.server.pid
        assert server is not None
        (child,) = descendants(server)
        os.kill(server if victim == "server" else child, signal.SIGSTOP)
        await asyncio.wait_for(it.until(server), WAIT_S)
        assert "stopped (SIGSTOP)" in it.failures[0].reason
        assert not is_running(server)
        assert not is_running(child)
        assert await it.answer() == [5, 6] * 10


async def test_a_server_that_can_not_be_started_again_is_tried_until_it_can(command: EngineStart) -> None:
    config = command.engine_dir / "paced.json"
    async with supervised(command) as it:
        pid = it.server.pid
        assert pid is not None
        config.rename(command.engine_dir / "away.json")
        os.kill(pid, signal.SIGKILL)
        while len(it.failures) < 2:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.01)
        assert "E2108" in it.failures[1].reason
        with pytest.raises(EngineCrashed, match="not ready"):
            await it.answer()
        (command.engine_dir / "away.json").rename(config)
        await asyncio.wait_for(it.until(pid), WAIT_S)
        assert await it.answer() == [5, 6] * 10


async def test_why_an_engine_does_not_load_keeps_its_code(command: EngineStart) -> None:
    with pytest.raises(InvalidSetting, match="tokens_per_second"):
        async with supervised(replace(command, options={"tokens_per_second": "fast"})):
            pass


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "can't be run|exit code"),
        ("echo no such thing; exit 3", "exit code 3.*no such thing"),
        ("echo \"ModuleNotFoundError: No module named 'x'\"; exit 1", "no package x; run `make setup`"),
        ("kill -9 $$", "SIGKILL"),
        ("exec sleep 600", "not within"),
    ],
)
async def test_a_python_that_is_none_is_e2108(
    tmp_path: Path, command: EngineStart, script: str | None, says: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    timeout_s = 0.5 if says == "not within" else WAIT_S
    with pytest.raises(EngineStartFailed, match=says):
        async with supervised(command, str(python), start_timeout_s=timeout_s):
            pass


async def test_an_engine_that_arrives_late_does_not_use_up_the_time_to_start(command: EngineStart) -> None:
    command.arrival.unlink()
    async with EngineClient(command.arrival.parent / "socket", WAIT_S, "paced") as client:
        it = Supervised(command, client, sys.executable, 0.5)  # Less than the engine takes to arrive.
        it.server.begin()
        try:
            await asyncio.sleep(1.5)
            it.server.check_start()
            it.server._start_timeout_s = WAIT_S
            await next_look(it.server)
            announce(command.arrival, Arrived((0,), 0))
            await it.server.wait_ready()
            assert await it.answer() == [5, 6] * 10
        finally:
            await it.server.stop()


def test_the_engine_has_the_runners_libraries_and_not_its_python(
    command: EngineStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/runner")
    monkeypatch.setenv("PYTHONHOME", "/of/the/runner")
    monkeypatch.setenv("HF_TOKEN", "secret")
    environment = engine_environment(command.engine_kind)
    assert environment["LD_LIBRARY_PATH"] == "/of/the/runner"
    assert not {"PYTHONHOME", "HF_TOKEN"} & set(environment)


@pytest.mark.parametrize(("set_to", "threads"), [(None, "1"), ("4", "4")])
def test_vllm_has_one_thread_beside_its_gpu_unless_told_otherwise(
    command: EngineStart, monkeypatch: pytest.MonkeyPatch, set_to: str | None, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_to:
        monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    assert engine_environment("vllm")["OMP_NUM_THREADS"] == threads
    assert engine_environment(command.engine_kind).get("OMP_NUM_THREADS") == set_to
