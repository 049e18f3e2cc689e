"""The engine server, Triton and its stubs fail: errors, reasons, failures' lines, restarts."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.engines import EngineCrashed
from runner.engines.paced.faults import FAULT_SEEDS, VARIABLE
from runner.supervision import failures
from tests.runner.api.apis import API
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.running import QUESTION, Running, answer, is_healthy
from tests.runner.servers import (
    ENSEMBLE,
    TritonUnderTest,
    assert_ended,
    command_of,
    is_running,
    triton_pids,
    wait_until,
)

pytestmark = pytest.mark.servers

TIMEOUT_S = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    return make_paced_model(tmp_path_factory.mktemp("failures") / "model", 200)


@pytest.fixture(scope="module")
def brittle(model: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    """Yield a Triton to break; each test leaves it serving again. It soon starts again."""
    folder = tmp_path_factory.mktemp("brittle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "BACKOFF_S", (0.5,))
        server = TritonUnderTest(model, folder, TRITON_TIMEOUT=str(TIMEOUT_S), FAILURE_LIMIT="99")
        yield server
        server.close()
    assert_ended(server.http_port)


def test_without_an_engine_requests_are_e2107_and_the_health_says_so(
    brittle: TritonUnderTest, model: PacedModel
) -> None:
    assert is_healthy(brittle)
    pace = model.directory / "paced.json"
    pace.rename(pace.with_name("away.json"))
    os.kill(brittle.engine_pid(), signal.SIGKILL)
    wait_until(lambda: not is_healthy(brittle))
    with pytest.raises(EngineCrashed, match="E2107"):
        answer(brittle)
    body = {"text_input": QUESTION, "max_tokens": 3}
    assert "E2107" in brittle.post(f"{ENSEMBLE}/generate", body).text
    pace.with_name("away.json").rename(pace)
    wait_until(lambda: is_healthy(brittle))
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("name", ["server", "tensorrt_llm", "preprocessing"])
def test_triton_is_started_again_for_a_reason_with_a_name_and_requests_go_on(
    brittle: TritonUnderTest, name: str, number: signal.Signals
) -> None:
    triton, engine = brittle.service.stack.triton, brittle.engine_pid()
    running, restarts, pid, before = Running(brittle, 1000), triton.restarts, triton.pid, len(brittle.log)
    assert pid is not None
    os.kill(pid if name == "server" else stub_pid(brittle, name), number)
    wait_until(lambda: not is_healthy(brittle))
    wait_until(lambda: is_healthy(brittle))
    (reason,) = [line for line in brittle.log[before:] if "can't go on" in line]
    assert number.name in reason
    assert name in reason or number == signal.SIGKILL
    assert triton.restarts == restarts + 1
    assert not is_running(pid)
    assert brittle.engine_pid() == engine
    assert brittle.run(running.read_all()) == brittle.model.expected_text(QUESTION, 1000)
    wait_until(lambda: brittle.counters.is_settled)


def test_a_process_that_is_stopped_for_a_moment_goes_on(brittle: TritonUnderTest) -> None:
    triton, engine = brittle.service.stack.triton, brittle.engine_pid()
    restarts = triton.restarts
    for pid in (engine, stub_pid(brittle, "tensorrt_llm")):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    assert (triton.restarts, brittle.engine_pid()) == (restarts, engine)


def test_a_request_without_a_token_is_sent_again_after_a_failure_of_the_engine(
    brittle: TritonUnderTest,
) -> None:
    engine, triton_pid = brittle.engine_pid(), brittle.service.stack.triton.pid
    os.kill(engine, signal.SIGSTOP)
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    wait_until(lambda: is_healthy(brittle))
    assert brittle.engine_pid() != engine
    assert brittle.service.stack.triton.pid == triton_pid


def test_each_failure_is_a_line_with_its_cause_and_no_prompt(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "requests")
    api = API(model, tmp_path, LOG_FORMAT="json")
    server = api.triton
    crash = next(seed for seed, fault in FAULT_SEEDS.items() if fault == "crash")
    asked = {"model": "paced", "prompt": QUESTION}
    try:
        with api.streaming("/v1/completions", **asked, max_tokens=4000) as stream:
            next(stream)
            with pytest.raises(EngineCrashed, match="E2107"):
                answer(server, 40, temperature=1.0, seed=crash)
            (line,) = wait_until(lambda: [each for each in server.log if "engine failed: " in each])
            lines = wait_until(
                lambda: [each for each in server.log if "request failed" in each and "E2107" in each]
            )
    finally:
        api.close()
    failure = json.loads(line)
    assert "killed by SIGSEGV" in failure["reason"]
    assert failure["likely_cause"] == "a crash in native code"
    assert failure["running_requests"] >= 0
    assert failure["engine"]["engine_kind"] == "paced"
    assert any("engine ready" in each for each in failure["last_lines"])
    ended = json.loads(lines[0].removeprefix("openai: "))
    assert (ended["api"], ended["outcome"]) == ("openai", "failed")
    assert ended["output_tokens"] > 0
    assert ended["inputs"]["max_tokens"] == 4000
    cogs = next(
        each for each in capfd.readouterr().err.splitlines() if '"api": "cog", "outcome": "failed"' in each
    )
    assert json.loads(cogs)["inputs"]["seed"] == str(crash)
    for each in (line, *lines, cogs):
        assert QUESTION not in each
        assert str(model.ids(QUESTION))[1:-1] not in each


def stub_pid(server: TritonUnderTest, name: str) -> int:
    (pid,) = [pid for pid in triton_pids(server.http_port) if f"/{name}/1/model.py" in command_of(pid)]
    return pid


def test_while_triton_is_away_requests_go_on_and_the_health_says_so(brittle: TritonUnderTest) -> None:
    triton = brittle.service.stack.triton
    config = triton._command.model_repository / "ensemble" / "config.pbtxt"
    config.rename(config.with_name("away"))
    os.kill(triton.pid, signal.SIGKILL)
    wait_until(lambda: any("E2106" in line and "next try in" in line for line in brittle.log))
    assert not is_healthy(brittle)
    assert answer(brittle) == brittle.model.expected_text(QUESTION, 12)
    config.with_name("away").rename(config)
    wait_until(lambda: is_healthy(brittle))
    assert brittle.post(f"{ENSEMBLE}/generate", {"text_input": QUESTION, "max_tokens": 3}).status_code == 200
