"""The probes of an orchestrator are red when the runner is, though Cog answers 200 all the time."""

import os
import signal
import threading
from pathlib import Path

import httpx
import pytest

from runner.probe import QUESTIONS
from runner.settings.ports import free_ports
from tests.runner.paced_engine import make_paced_model
from tests.runner.probes import answers, ask
from tests.runner.servers import DEADLINE_S, CogUnderTest, triton_pids, wait_until


@pytest.mark.servers
def test_a_runner_from_start_to_stop(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 50)
    server = CogUnderTest(model, tmp_path, wait=False, COG_MAX_CONCURRENCY="1")
    try:
        wait_until(lambda: server.status() == "STARTING")
        assert answers(server.port) == {"started": False, "ready": False, "alive": True}
        server.server.wait_ready(500)
        assert answers(server.port) == {"started": True, "ready": True, "alive": True}

        busy = threading.Thread(target=server.predict, kwargs={"prompt": "hi", "max_tokens": 100})
        busy.start()
        wait_until(lambda: server.status() == "BUSY")
        assert answers(server.port) == {"started": True, "ready": True, "alive": True}
        busy.join()

        tritons = triton_pids(server.triton_http_port)
        for pid in tritons:
            os.kill(pid, signal.SIGSTOP)
        # The runner treats a stopped Triton as dead and replaces it. Until then it is unhealthy.
        wait_until(lambda: server.status() == "UNHEALTHY")
        assert [each for each, yes in QUESTIONS.items() if "UNHEALTHY" in yes] == ["started", "alive"]
        assert httpx.get(f"{server.url}/health-check", timeout=DEADLINE_S).status_code == 200
        wait_until(lambda: server.status() == "READY")
        assert answers(server.port)["ready"]
    finally:
        server.close()
    assert answers(server.port) == {"started": False, "ready": False, "alive": False}


@pytest.mark.parametrize("arguments", [(), ("dead",), ("ready", "alive")])
def test_a_wrong_question_says_what_there_is(arguments: tuple[str, ...]) -> None:
    run = ask(free_ports(1)[0], *arguments)
    assert run.returncode == 2
    assert run.stderr == "usage: python -m runner.probe started|ready|alive\n"
