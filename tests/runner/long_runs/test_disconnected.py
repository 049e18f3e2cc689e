"""Clients that disconnect free the engine; with VLLM_PYTHON, a vLLM engine on this machine's GPU."""

import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import urllib3

from perf.engines import paced_engine
from perf.peers.engine import Engine, known_engine
from perf.peers.requests import posting
from perf.peers.servers import resident
from perf.peers.workloads import Prompt, Workload
from tests.runner.long_runs.resources import counters
from tests.runner.servers import wait_until

PYTHON = os.environ.get("VLLM_PYTHON", "")
CLIENTS, TOKENS = 16, 1900
USED = "engine_cache_used_ratio"
PROMPT = Prompt("Once upon a time there was", [400, 401, 402, 403], TOKENS)

pytestmark = [pytest.mark.servers, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(params=["paced", "vllm"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "paced":
        return Engine(paced_engine(tmp_path, 50), "paced", "", tmp_path)
    if not PYTHON:
        pytest.skip("VLLM_PYTHON is not set")
    return known_engine("1b", PYTHON, tmp_path, [Workload(CLIENTS, CLIENTS, (64, 64), (TOKENS, TOKENS))])


def test_clients_that_disconnect_free_what_they_had(engine: Engine, tmp_path: Path) -> None:
    with ExitStack() as at_end:
        servers = resident(["triton-front", "cog-events", "api-1"], {"": engine}, tmp_path)
        endpoints = list(at_end.enter_context(servers).values())
        found = at_end.enter_context(closing(counters(endpoints[0].metrics_url)))
        for number, endpoint in enumerate(endpoints):
            with ExitStack() as opened:
                for _ in range(CLIENTS):
                    asked = posting(endpoint, PROMPT).request
                    headers = dict(asked.headers)
                    response = urllib3.request(
                        "POST", asked.url, headers=headers, body=asked.body, preload_content=False
                    )
                    opened.callback(response.close)
                    assert response.status == 200
                    assert response.read1()
                wait_until(lambda: found.running == CLIENTS)
                if engine.kind == "vllm":
                    wait_until(lambda: found[USED] > 0)
            wait_until(lambda: found.running == 0)
            if engine.kind == "vllm":
                wait_until(lambda: found[USED] == 0)
            assert found.cancelled == (number + 1) * CLIENTS
