"""The mock in a real Cog server, and its load test as it is typed."""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from runner.cog_server.launch import CogServer
from tests.runner.servers import HOST, free_ports, wait_until

FOLDER = Path(__file__).resolve().parents[2] / "mock_cog_triton"


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogServer]:
    (port,) = free_ports(1)
    log_path = tmp_path_factory.mktemp("mock") / "cog.log"
    with CogServer("mock_cog_triton", host=HOST, port=port, log_path=log_path, extra={}) as server:
        server.wait_ready(500.0)
        yield server


def predict(mock: CogServer, **inputs: object) -> httpx.Response:
    return httpx.post(f"{mock.url}/predictions", json={"input": inputs}, timeout=300)


@pytest.mark.servers
def test_tokens_come_as_the_output_method_says(mock: CogServer) -> None:
    chunks = {"yield": [1] * 7, "buffer": [3, 3, 1], "wait": [7], "print": [7]}
    for method, expected in chunks.items():
        inputs = {"tps": 100, "n_output_tokens": 7, "output_method": method, "buffer_size": 3}
        prediction = predict(mock, **inputs).json()
        assert prediction["status"] == "succeeded"
        assert [chunk.count(" token") for chunk in prediction["output"]] == expected
        assert prediction["metrics"]["output_token_count"] == 7
        assert (" token token" in prediction["logs"]) is (method == "print")


@pytest.mark.servers
def test_the_log_tells_what_was_expected_and_what_was(mock: CogServer) -> None:
    logs = predict(mock, tps=50, n_output_tokens=10).json()["logs"]
    figures = {name: float(value) for name, value in re.findall(r"^([\w ]+): ([\d.]+)", logs, re.MULTILINE)}
    assert figures["Tokens processed"] == 10
    assert figures["Expected tokens per second"] == 50
    assert figures["Expected execution time"] == 0.2
    assert figures["Expected time to first token"] == 0.02
    assert figures["Serverside execution time"] >= 0.2
    assert figures["Serverside time to first token"] >= 0.02
    assert figures["Serverside tokens per second"] <= 50


@pytest.mark.servers
def test_inputs_that_make_no_sense_are_refused(mock: CogServer) -> None:
    for name, value in {"output_method": "shout", "tps": 0, "n_output_tokens": 0, "buffer_size": 0}.items():
        answer = predict(mock, **{name: value})
        assert answer.status_code == 422
        assert name in answer.text


def test_the_schema_is_that_of_the_signature() -> None:
    document = json.loads((FOLDER / ".cog" / "openapi_schema.json").read_text())
    inputs = document["components"]["schemas"]["Input"]["properties"]
    defaults = {name: each["default"] for name, each in inputs.items()}
    assert defaults == {"tps": 44.0, "n_output_tokens": 128, "output_method": "yield", "buffer_size": 10}


@pytest.mark.servers
@pytest.mark.parametrize("place", [FOLDER, FOLDER.parent])
def test_the_documented_load_test_works_as_it_is_typed(mock: CogServer, place: Path) -> None:
    """Run it in the folder and from above it, with the standard library alone."""
    port = mock.url.rpartition(":")[2]
    script = (FOLDER / "test_perf.py").relative_to(place)
    load = ["--unit", "batch", "--duration", "1", "--rate", "24", "--output_method", "yield"]
    options = [*load, "--tps", "100", "--n_output_tokens", "32"]
    command = [sys.executable, "-S", "-I", str(script), *options]
    done = subprocess.run(
        command, cwd=place, env={"PORT": port}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == ["-" * 30, "Test Configuration:", "-" * 30, "Output Method: yield"]
    done_well = {"Max concurrency: 24", "Total requests completed: 24", "Cog already running prediction: 0"}
    assert done_well | {"Failure rate: 0.000, Total failures: 0"} <= set(lines)
    assert any(line.startswith("--Expected mean: 100.000, Actual mean: ") for line in lines)


@pytest.mark.servers
def test_the_documented_commands_start_it_as_they_are_typed() -> None:
    text = (FOLDER.parent / "docs" / "load-test.md").read_text()
    (block,) = re.findall(r"((?:    .*\n)*    .*cog\.server\.http\n)", text)
    (port,) = free_ports(1)
    path = ":".join(each for each in os.environ["PATH"].split(":") if ".venv" not in each)
    environment = {**os.environ, "PATH": path, "PORT": str(port)}
    command = ["bash", "-c", re.sub(r"python (?=-m)", "exec python ", textwrap.dedent(block))]
    with subprocess.Popen(command, cwd=FOLDER.parent, env=environment) as process:
        try:
            wait_until(lambda: _is_ready(port))
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    try:
        health = httpx.get(f"http://{HOST}:{port}/health-check", timeout=60)
    except httpx.TransportError:
        return False
    return bool(health.json()["status"] == "READY")
