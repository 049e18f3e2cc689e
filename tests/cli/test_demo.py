"""The main job, end to end, as ``make demo`` runs it."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT

pytestmark = pytest.mark.servers


def run_demo(environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", "demo"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(engine_python() == sys.executable, reason="needs the engine environment (make setup)")
def test_the_demo_builds_serves_streams_and_stops(ports: dict[str, str], tmp_path: Path) -> None:
    result = run_demo(ports, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "pack engine.tar" in result.stdout
    assert "engine      transformers" in result.stdout
    streamed = result.stdout.split("=== 4.")[1].split("=== 5.")[0]
    assert re.search(r"Once upon a time[, ].*\w+ \w+ \w+", streamed, re.DOTALL)
    assert re.search(r"\d+ tokens, \d+ tokens/s, first token after \d+ ms, finish reason: \w+", streamed)
    by_curl = result.stdout.split("=== 5.")[1]
    assert by_curl.count("curl -s -N -X POST") == 5
    for told in ("status: succeeded", '"chunk"', '"text_output"', '"output_ids"', '"chat.completion"'):
        assert told in by_curl
    for port in ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, f"port {port} is still taken"


def test_ctrl_c_ends_make_demo_without_an_error(ports: dict[str, str]) -> None:
    demo = subprocess.Popen(
        ["make", "--old-file", "setup-serving", "demo"],
        cwd=SOURCE_ROOT,
        env={**os.environ, **ports},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout.readline() == "\n"
    assert demo.stdout.readline().startswith("=== 1.")
    os.killpg(demo.pid, signal.SIGINT)  # As a terminal does at Ctrl-C.
    output = demo.stdout.read()
    demo.wait(240)
    assert output.endswith("\nstopped\n")
    assert "make" not in output
    assert "Traceback" not in output


def test_the_demo_names_all_taken_ports_and_their_variables_at_once(
    ports: dict[str, str], tmp_path: Path
) -> None:
    first, *others = ("PORT", "TRITON_METRICS_PORT", "OPENAI_PORT")
    with ExitStack() as held:
        for name in (first, *others):
            held.enter_context(socket.create_server(("127.0.0.1", int(ports[name]))))
        result = run_demo(ports, tmp_path)
    also = ", ".join(f"{ports[name]} ({name})" for name in others)
    assert (result.returncode, result.stdout) == (2, ""), "before anything is built"
    assert result.stderr.startswith(f"E1007 PortInUse: Port {ports[first]} for ")
    assert result.stderr.strip().endswith(f"set {first} to a free port; also in use: {also}.")
