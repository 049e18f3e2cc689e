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

from errors.base import CodedError
from errors.triton_system import EngineCrashed, ServerStopping, TritonUnavailable
from runner import triton_heart
from runner.engines.paced_faults import FAULT_SEEDS, VARIABLE
from runner.generation import Generation
from runner.generation_request import GenerationRequest, SamplingInputs
from tests.runner.openai.apis import API
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
    server = TritonUnderTest(
        model, tmp_path_factory.mktemp("brittle"), TRITON_TIMEOUT=str(TIMEOUT_S), FAILURE_LIMIT="99"
    )
    yield server
    server.close()
    assert worker_pids(model.directory) == []
    assert triton_pids(server.http_port) == []
    assert shared_memory(server.http_port) == []


class Running:
    """A long generation that has begun; it runs in the server's event loop."""

    def __init__(self, server: TritonUnderTest, max_tokens: int = 4000) -> None:
        self._server = server
        self._text = self.request(server, max_tokens).text()
        self._first = server.run(anext(self._text))

    @staticmethod
    def request(server: TritonUnderTest, max_tokens: int) -> Generation:
        request = GenerationRequest(QUESTION, max_tokens, 0, (), SamplingInputs(temperature=0))
        return server.service.generate(request)

    async def read_all(self) -> str:
        return self._first + "".join([text async for text in self._text])

    def error(self) -> CodedError:
        """What it ends with."""

        async def read_on() -> CodedError:
            with pytest.raises(CodedError) as raised:
                await self.read_all()
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
    request = GenerationRequest(QUESTION, 12, 0, (), SamplingInputs(temperature=0))
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
    request = GenerationRequest(QUESTION, 40, 0, (), SamplingInputs(seed=crash))

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


def test_an_engine_that_hangs_silently_is_found_by_its_silence_and_a_stalled_request_alone_is_not(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "requests")
    config = tmp_path / "config.yaml"
    config.write_text("instantiate: {server: {tensorrt_llm: {args: {engine_hang_timeout_s: 1}}}}")
    server = TritonUnderTest(model, tmp_path, COG_TRITON_CONFIG=str(config))
    seeds = {fault: seed for seed, fault in FAULT_SEEDS.items()}

    async def read(fault: str) -> None:
        request = GenerationRequest(QUESTION, 40, 0, (), SamplingInputs(seed=seeds[fault]))
        async for _ in server.service.generate(request).text():
            pass

    async def others_go_on() -> None:
        stalled = asyncio.ensure_future(read("stall"))
        for _ in range(20):
            await read("garbage")
        assert not stalled.done()
        stalled.cancel()

    try:
        server.run(others_go_on())
        assert server.counters["engine_restarts_total"] == 0
        with pytest.raises(EngineCrashed, match="it hangs: requests waited"):
            server.run(read("hang"))
        wait_until(lambda: is_healthy(server))
    finally:
        server.close()


def test_a_triton_that_answers_nothing_for_too_long_is_killed_and_comes_back(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence is pretended: nothing makes a real Triton hang in a state that is not seen at once."""
    monkeypatch.setattr(triton_heart, "_HEARTBEAT_S", 0.05)
    server = TritonUnderTest(model, tmp_path, TRITON_HANG_TIMEOUT="3")

    async def is_silent() -> bool:
        return False

    try:
        time.sleep(0.5)
        assert server.service.triton.restarts == 0
        running = Running(server)
        monkeypatch.setattr(server.service.client, "is_answering", is_silent)
        assert isinstance(running.error(), TritonUnavailable)
        wait_until(lambda: any("did not answer for 3 s" in line for line in server.log))
        monkeypatch.undo()
        wait_until(lambda: is_healthy(server))
        assert answer(server) == model.expected_text(QUESTION, 12)
    finally:
        server.close()


def test_too_many_failures_are_given_up(model: PacedModel, tmp_path: Path) -> None:
    server = TritonUnderTest(model, tmp_path, FAILURE_LIMIT="2")
    try:
        for _ in range(2):
            wait_until(lambda: is_healthy(server))
            assert not server.service.hopeless.is_set()
            triton_pid = server.service.triton.pid
            assert triton_pid is not None
            os.kill(triton_pid, signal.SIGKILL)
            wait_until(lambda: server.service.triton.down_reason)
        wait_until(server.service.hopeless.is_set)
        wait_until(lambda: "failed too often" in (server.service.triton.down_reason or ""))
        with pytest.raises(TritonUnavailable, match="failed too often"):
            answer(server)
    finally:
        server.close()


def test_stopping_lets_requests_end_refuses_others_and_ends_those_that_take_too_long(
    model: PacedModel, tmp_path: Path
) -> None:
    server = TritonUnderTest(model, tmp_path, STOP_GRACE_PERIOD="1")
    long, short = Running(server), Running(server, 20)

    async def drain() -> None:
        draining = asyncio.ensure_future(server.service.drain())
        await asyncio.sleep(0)
        assert not await server.service.is_healthy()
        with pytest.raises(ServerStopping):
            async for _ in Running.request(server, 3).text():
                pass
        assert await short.read_all() == model.expected_text(QUESTION, 20)
        with pytest.raises(ServerStopping, match="grace period of 1 s is over"):
            await long.read_all()
        await draining

    try:
        server.run(drain())
    finally:
        server.close()
    assert worker_pids(tmp_path) == []


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
