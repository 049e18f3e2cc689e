"""What dies or hangs while it serves is told to those who wait, and comes back: worker, Triton, stubs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.engines import EngineCrashed
from errors.triton import TritonUnavailable
from runner.engines.paced.faults import FAULT_SEEDS, VARIABLE
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from tests.runner.api.apis import API
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.running import QUESTION, Running, answer, is_healthy
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

pytestmark = pytest.mark.servers

TIMEOUT_S = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    """An engine of this module's own, so that its worker is found by its folder."""
    return make_paced_model(tmp_path_factory.mktemp("failures") / "model", 200)


@pytest.fixture(scope="module")
def brittle(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    """A Triton to break; each test leaves it serving again."""
    server = TritonUnderTest(
        model, tmp_path_factory.mktemp("brittle"), TRITON_TIMEOUT=str(TIMEOUT_S), FAILURE_LIMIT="99"
    )
    yield server
    server.close()
    assert worker_pids(model.directory) == []
    assert triton_pids(server.http_port) == []
    assert shared_memory(server.http_port) == []


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


def test_a_stopped_worker_is_e2107_long_before_the_timeout_and_another_takes_over(
    brittle: TritonUnderTest,
) -> None:
    running = Running(brittle)
    worker = brittle.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    error = running.error()
    assert isinstance(error, EngineCrashed)
    assert "stopped (SIGSTOP) and did not go on" in error.sentence
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert not is_running(worker)
    wait_until(lambda: brittle.counters.is_settled)


@pytest.mark.parametrize("name", ["server", "tensorrt_llm", "preprocessing"])
def test_a_stopped_process_of_triton_is_e2105_long_before_the_timeout(
    brittle: TritonUnderTest, name: str
) -> None:
    running = Running(brittle)
    triton_pid = brittle.service.triton.pid
    assert triton_pid is not None
    os.kill(triton_pid if name == "server" else stub_pid(brittle, name), signal.SIGSTOP)
    assert isinstance(running.error(), TritonUnavailable)
    reason = brittle.service.triton.down_reason or ""
    assert "stopped (SIGSTOP)" in reason
    assert name in reason
    assert not is_healthy(brittle)
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert not is_running(triton_pid)


def test_a_process_that_is_stopped_for_a_moment_goes_on(brittle: TritonUnderTest) -> None:
    restarts, worker = brittle.service.triton.restarts, brittle.worker_pid()
    for pid in (worker, stub_pid(brittle, "tensorrt_llm")):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert (brittle.service.triton.restarts, brittle.worker_pid()) == (restarts, worker)


@pytest.mark.parametrize("victim", ["triton", "worker"])
def test_a_request_without_a_token_is_sent_again_and_nobody_notices(
    brittle: TritonUnderTest, victim: str
) -> None:
    """A stopped worker keeps its requests from their first token."""
    worker, triton_pid = brittle.worker_pid(), brittle.service.triton.pid
    assert triton_pid is not None
    os.kill(worker, signal.SIGSTOP)
    request = GenerationRequest(QUESTION, 12, 0, (), Sampling(temperature=0))
    generation = brittle.service.generate(request)

    async def read() -> str:
        return "".join([text async for text in generation.text()])

    async def read_and_kill() -> str:
        reading = asyncio.ensure_future(read())
        while not brittle.service.requests.num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        os.kill(triton_pid if victim == "triton" else worker, signal.SIGKILL)
        return await reading

    assert brittle.run(read_and_kill()) == brittle.model.expected_text(QUESTION, 12)
    wait_until(lambda: is_healthy(brittle))
    assert brittle.worker_pid() != worker


def test_each_failure_leaves_a_bundle_with_its_cause_and_no_prompt(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "requests")
    flights = tmp_path / "flights"
    api = API(model, tmp_path, FLIGHT_RECORDER_DIR=str(flights))
    server = api.triton
    crash = next(seed for seed, fault in FAULT_SEEDS.items() if fault == "crash")
    request = GenerationRequest(QUESTION, 40, 0, (), Sampling(seed=crash))

    async def read() -> None:
        async for _ in server.service.generate(request).text():
            pass

    asked = {"model": "paced", "prompt": QUESTION}
    try:
        api.ask("/v1/completions", **asked, max_tokens=3)
        with api.streaming("/v1/completions", **asked, max_tokens=4000) as stream:
            next(stream)
            with pytest.raises(EngineCrashed, match="SIGSEGV"):
                server.run(read())
        (bundle,) = wait_until(lambda: list(flights.glob("*-engine")))
        failure = json.loads((bundle / "failure.json").read_text())
        assert "killed by SIGSEGV" in failure["reason"]
        assert failure["likely_cause"] == "a crash in native code"
        *_, done, running, last = json.loads((bundle / "requests.json").read_text())
        assert (done["api"], done["ended"], done["output_tokens"]) == ("openai", "done", 3)
        assert running["api"] == "openai"
        assert running["output_tokens"] > 0
        # Its process heard of the crash just before it was recorded, or just after.
        assert running["ended"] in (None, EngineCrashed.code)
        assert last["api"] == "cog"
        assert last["inputs"]["input_ids_count"] == len(model.ids(QUESTION))
        assert last["inputs"]["random_seed"] == crash
        assert "engine worker lost" in (bundle / "log.txt").read_text()
        assert json.loads((bundle / "engine_manifest.json").read_text())["engine_kind"] == "paced"
        told = "".join(path.read_text() for path in bundle.iterdir())
        assert QUESTION not in told
        assert str(model.ids(QUESTION))[1:-1] not in told
        assert any(str(bundle) in line for line in server.log)
    finally:
        api.close()


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
