"""The runner's Cog server when what it needs is missing or dies: health, errors, and nothing left behind."""

import os
import signal
from pathlib import Path

import pytest

from errors.settings import InvalidSetting
from errors.triton import ServerEnded
from tests.runner.paced_engine import make_paced_model
from tests.runner.probes import answers
from tests.runner.servers import (
    CogUnderTest,
    engine_pids,
    is_running,
    shared_memory,
    triton_pids,
    wait_until,
)

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"


def test_while_the_engine_is_down_the_server_is_unhealthy_and_says_why(tmp_path: Path) -> None:
    server = CogUnderTest(make_paced_model(tmp_path / "model", 200), tmp_path)
    try:
        assert server.status() == "READY"
        (pace,) = (tmp_path / "cache" / "engines").glob("*/paced.json")
        pace.rename(pace.with_name("away.json"))
        (engine,) = engine_pids(server.triton_http_port)
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: server.status() == "UNHEALTHY")
        prediction = server.predict(prompt=QUESTION, max_tokens=3)
        assert prediction["status"] == "failed"
        assert "E2107 EngineCrashed" in prediction["error"]
        pace.with_name("away.json").rename(pace)
        wait_until(lambda: server.status() == "READY")
        prediction = server.predict(prompt=QUESTION, max_tokens=3)
        assert "".join(prediction["output"]) == server.model.expected_text(QUESTION, 3)
    finally:
        server.close()


def test_a_setup_that_fails_is_one_coded_sentence_in_the_health(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 200)
    server = CogUnderTest(model, tmp_path, wait=False, TRITON_TIMEOUT="never")
    try:
        with pytest.raises(InvalidSetting, match="TRITON_TIMEOUT must be a number"):
            server.server.wait_ready(500)
        health = server.server.health()
        assert health["status"] == "SETUP_FAILED"
        assert answers(server.port) == {"started": True, "ready": False, "alive": False}
        logs = health["setup"]["logs"]
        assert logs.count("TRITON_TIMEOUT must be a number") == 1
        assert "Traceback" not in logs + server.log()
    finally:
        server.close()


def test_a_killed_cog_server_leaves_nothing_and_is_told_by_its_exit_and_log_path_without_prompts(
    tmp_path: Path,
) -> None:
    secret = "a prompt of a user"
    server = CogUnderTest(make_paced_model(tmp_path / "model", 200), tmp_path)
    pids = [*triton_pids(server.triton_http_port), *engine_pids(server.triton_http_port)]
    try:
        assert len(pids) == 5
        server.predict(prompt=secret, max_tokens=2)
        wait_until(lambda: secret in server.log())
        os.kill(server.server.pid, signal.SIGKILL)
        with pytest.raises(ServerEnded) as raised:
            server.server.wait()
        wait_until(lambda: not any(map(is_running, pids)))
        assert shared_memory(server.triton_http_port) == []
    finally:
        server.close()
    text = str(raised.value)
    assert text.startswith("E2111 ServerEnded: The runner's Cog server ended by itself after it had been")
    assert "killed by SIGKILL" in text
    assert str(server.log_path) in text
    assert secret not in text
