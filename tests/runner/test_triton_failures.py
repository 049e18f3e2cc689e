"""What dies while it serves is told to those who wait, and comes back: the worker, Triton, both again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.base import CodedError
from errors.triton_system import EngineCrashed, TritonTimeout, TritonUnavailable
from runner.generation import Generation, GenerationRequest, SamplingInputs
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import (
    ENSEMBLE,
    TritonUnderTest,
    command_of,
    is_running,
    shared_memory,
    triton_pids,
    wait_until,
    worker_pids,
)

QUESTION = "What is machine learning?"
TIMEOUT_S = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    """An engine of this module's own, so that its worker is found by its folder."""
    return make_paced_model(tmp_path_factory.mktemp("failures") / "model", 200)


@pytest.fixture(scope="module")
def brittle(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    """A Triton to break; each test leaves it serving again."""
    server = TritonUnderTest(model, tmp_path_factory.mktemp("brittle"), TRITON_TIMEOUT=str(TIMEOUT_S))
    yield server
    server.close()
    assert worker_pids(model.directory) == []
    assert triton_pids(server.http_port) == []
    assert shared_memory(server.http_port) == []


class Running:
    """A long generation that has begun; it runs in the server's event loop."""

    def __init__(self, server: TritonUnderTest) -> None:
        self._server = server
        request = GenerationRequest(QUESTION, 4000, 0, (), SamplingInputs(temperature=0))
        self._generation = server.service.generate(request)
        self._text = self._generation.text()
        server.run(anext(self._text))

    def error(self) -> CodedError:
        """What it ends with."""

        async def read_on() -> CodedError:
            with pytest.raises(CodedError) as raised:
                async for _ in self._text:
                    pass
            return raised.value

        return self._server.run(read_on())


def answer(server: TritonUnderTest) -> str:
    """A short prediction, as text."""

    async def read() -> str:
        request = GenerationRequest(QUESTION, 12, 0, (), SamplingInputs(temperature=0))
        generation: Generation = server.service.generate(request)
        return "".join([text async for text in generation.text()])

    return server.run(read())


def is_healthy(server: TritonUnderTest) -> bool:
    return server.run(server.service.is_healthy())


def test_a_killed_worker_is_e2107_to_its_requests_and_comes_back_under_the_same_triton(
    brittle: TritonUnderTest,
) -> None:
    triton_pid, first_worker = brittle.service.triton.pid, brittle.worker_pid()
    running = [Running(brittle) for _ in range(3)]
    os.kill(first_worker, signal.SIGKILL)
    for each in running:
        error = each.error()
        assert isinstance(error, EngineCrashed)
        assert "SIGKILL" in error.sentence
        assert error.sentence.endswith("send the request again.")
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert brittle.worker_pid() != first_worker
    assert brittle.service.triton.pid == triton_pid
    wait_until(lambda: brittle.counters["engine_restarts_total"] == 1)
    wait_until(lambda: brittle.counters.is_settled)


def test_without_a_worker_requests_are_e2107_and_the_health_says_so(
    brittle: TritonUnderTest, model: PacedModel
) -> None:
    assert is_healthy(brittle)
    pace = model.directory / "paced.json"
    pace.rename(pace.with_name("away.json"))
    os.kill(brittle.worker_pid(), signal.SIGKILL)
    wait_until(lambda: not is_healthy(brittle))
    with pytest.raises(EngineCrashed, match="E2107"):
        answer(brittle)
    body = {"text_input": QUESTION, "max_tokens": 3}
    assert "E2107" in brittle.post(f"{ENSEMBLE}/generate", body).text
    pace.with_name("away.json").rename(pace)
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)


def test_a_worker_that_hangs_is_e2101_after_the_timeout(brittle: TritonUnderTest) -> None:
    running = Running(brittle)
    worker = brittle.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    error = running.error()
    assert isinstance(error, TritonTimeout)
    assert f"after {TIMEOUT_S}s: httpx.ReadTimeout" in error.sentence
    os.kill(worker, signal.SIGCONT)
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    wait_until(lambda: brittle.counters.is_settled)


def test_a_killed_triton_is_e2105_to_its_requests_and_comes_back_with_a_new_worker(
    brittle: TritonUnderTest, model: PacedModel
) -> None:
    triton_pid, worker = brittle.service.triton.pid, brittle.worker_pid()
    assert triton_pid is not None
    running = [Running(brittle) for _ in range(3)]
    restarts = brittle.service.triton.restarts
    os.kill(triton_pid, signal.SIGKILL)
    for each in running:
        assert isinstance(each.error(), TritonUnavailable)
    wait_until(lambda: not is_running(worker))
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert brittle.service.triton.restarts == restarts + 1
    assert brittle.service.triton.pid != triton_pid
    assert len(worker_pids(model.directory)) == 1
    assert any("killed by SIGKILL" in line for line in brittle.log)


@pytest.mark.parametrize("name", ["tensorrt_llm", "postprocessing"])
def test_a_killed_process_of_a_triton_model_is_e2105_to_its_requests_and_comes_back(
    brittle: TritonUnderTest, name: str
) -> None:
    """Triton itself would go on without it, its requests waiting for ever."""
    running = Running(brittle)
    restarts = brittle.service.triton.restarts
    os.kill(stub_pid(brittle, name), signal.SIGKILL)
    assert isinstance(running.error(), TritonUnavailable)
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert brittle.service.triton.restarts == restarts + 1


def stub_pid(server: TritonUnderTest, name: str) -> int:
    (pid,) = [pid for pid in triton_pids(server.http_port) if f"/{name}/1/model.py" in command_of(pid)]
    return pid


def test_while_triton_is_away_requests_are_e2105_at_once_and_the_health_says_so(
    brittle: TritonUnderTest, model: PacedModel
) -> None:
    pace = model.directory / "paced.json"
    pace.rename(pace.with_name("away.json"))
    triton_pid = brittle.service.triton.pid
    assert triton_pid is not None
    os.kill(triton_pid, signal.SIGKILL)
    wait_until(lambda: brittle.service.triton.down_reason)
    with pytest.raises(TritonUnavailable, match="SIGKILL"):
        answer(brittle)
    assert not is_healthy(brittle)
    wait_until(lambda: any("next try in" in line for line in brittle.log))
    assert any("E2108" in line and "next try in" in line for line in brittle.log)
    pace.with_name("away.json").rename(pace)
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)


def test_a_hanging_worker_does_not_outlive_a_stopped_triton(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 200)
    server = TritonUnderTest(model, tmp_path)
    os.kill(server.worker_pid(), signal.SIGSTOP)
    server.close()
    assert worker_pids(model.directory) == []
    assert triton_pids(server.http_port) == []
    assert shared_memory(server.http_port) == []


def test_closing_while_requests_run_ends_them_and_leaves_nothing(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 200)
    server = TritonUnderTest(model, tmp_path)
    running = Running(server)

    async def close_meanwhile() -> CodedError:
        reading = asyncio.ensure_future(asyncio.to_thread(running.error))
        await server.service.close()
        return await reading

    assert server.run(close_meanwhile()).code in ("E2105", "E2107")
    server.close()
    assert worker_pids(model.directory) == []
    assert triton_pids(server.http_port) == []
    assert shared_memory(server.http_port) == []
