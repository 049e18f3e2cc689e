"""Commands that start servers, interrupted and not: exit codes, and nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT

pytestmark = pytest.mark.servers

EXAMPLE = SOURCE_ROOT / "builder" / "examples" / "paced" / "config.yaml"


Result = subprocess.CompletedProcess[str]


def cog_triton(*arguments: str, cwd: Path | None = None, **environment: str) -> Result:
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def paced_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tar = tmp_path_factory.mktemp("cli") / "paced.tar"
    result = cog_triton("build", str(EXAMPLE), "-o", str(tar), COG_TRITON_CACHE=str(tar.parent / "cache"))
    assert result.returncode == 0, result.stderr
    return tar


def test_generate_streams_to_stdout_and_leaves_nothing_else(paced_tar: Path, tmp_path: Path) -> None:
    options = ("--max-tokens", "5", "--temperature", "0")
    result = cog_triton("generate", str(paced_tar), "once upon a time", *options, TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("once")
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_generate_leaves_nothing(paced_tar: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "generate", str(paced_tar), "once upon", "--max-tokens", "99999"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=SOURCE_ROOT, env=environment, stdout=pipe, stderr=pipe) as process:
        assert process.stdout.read(4) == b"once"
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
    assert process.returncode == 130
    assert told.startswith(b"note: the model takes at most ")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_serve_exits_with_130_and_leaves_nothing_running(
    paced_tar: Path, ports: dict[str, str]
) -> None:
    environment = {
        **os.environ,
        **ports,
        "PYTHONPATH": str(SOURCE_ROOT),
        "COG_TRITON_CACHE": str(paced_tar.parent / "cache"),
    }
    # As a script's background job, which begins with SIGINT ignored.
    in_background = ["sh", "-c", """trap '' INT; exec "$@" """, "sh"]
    server = subprocess.Popen(
        [*in_background, sys.executable, "-m", "cli", "serve", str(paced_tar)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        assert any(f":{ports['PORT']}" in line for line in lines), lines
        server.send_signal(signal.SIGINT)
        assert server.wait(240) == 130
    finally:
        server.terminate()
    for port in ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, f"port {port} is still taken"


def test_a_start_that_takes_too_long_names_its_phase_and_the_setting(
    paced_tar: Path, ports: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    engine = {"COG_TRITON_ENGINE_PYTHON": str(python), "COG_SETUP_TIMEOUT": "5"}
    result = cog_triton("serve", str(paced_tar), **ports, **engine)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert re.search("^E2106 .*not within COG_SETUP_TIMEOUT, while (loading the engine|starting Cog)", line)
