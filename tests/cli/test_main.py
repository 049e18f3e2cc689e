"""Exit codes that scripts can trust; one coded sentence on stderr, never a traceback."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from tests.runner.tensorrt_llm_engine import make_compiled_model, write_engine_python
from tests.standins.gpus import make_gpus

pytestmark = pytest.mark.servers

PORTS = ("PORT", "TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT", "OPENAI_PORT")
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


def one_coded_line(result: Result, code: str) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(code)
    return lines[0]


@pytest.fixture(scope="module")
def paced_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tar = tmp_path_factory.mktemp("cli") / "paced.tar"
    result = build_paced(tar)
    assert result.returncode == 0, result.stderr
    return tar


def build_paced(tar: Path) -> Result:
    cache = tar.parent / "cache"
    return cog_triton("build", str(EXAMPLE), "-o", str(tar), COG_TRITON_CACHE=str(cache))


@pytest.mark.parametrize("command", ["inspect", "serve"])
def test_an_engine_that_is_not_there_is_e1301_and_exit_2(
    command: str, tmp_path: Path, free_ports: list[int]
) -> None:
    missing, ports = tmp_path / "none.tar", dict(zip(PORTS, map(str, free_ports), strict=False))
    result = cog_triton(command, str(missing), **ports)
    assert result.returncode == 2
    assert str(missing) in one_coded_line(result, "E1301")
    missing.symlink_to(missing)
    assert str(missing) in one_coded_line(cog_triton(command, str(missing), **ports), "E1301")


def test_a_dry_run_shows_the_steps_and_builds_nothing(tmp_path: Path) -> None:
    result = cog_triton("build", str(EXAMPLE), "--dry-run", cwd=tmp_path)
    assert result.returncode == 0
    assert any(line.endswith("pack engine.tar") for line in result.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_build_says_what_it_made_in_plain_lines(paced_tar: Path) -> None:
    assert paced_tar.stat().st_size > 0
    again = build_paced(paced_tar.parent / "again.tar")
    assert "paced" in again.stdout
    assert "\r" not in again.stdout + again.stderr
    assert (paced_tar.parent / "again.tar").read_bytes() == paced_tar.read_bytes()


def test_inspect_tells_the_manifest_verifies_and_finds_a_flipped_bit(paced_tar: Path, tmp_path: Path) -> None:
    shown = cog_triton("inspect", str(paced_tar), "--verify")
    assert shown.returncode == 0
    assert "paced" in shown.stdout
    assert "verified" in shown.stdout
    manifest = json.loads(cog_triton("inspect", str(paced_tar), "--json").stdout)
    assert manifest["engine_kind"] == "paced"
    assert "tokenizer.json" in manifest["files"]
    data = bytearray(paced_tar.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "flipped.tar").write_bytes(data)
    result = cog_triton("inspect", str(tmp_path / "flipped.tar"), "--verify")
    assert result.returncode == 2
    one_coded_line(result, "E13")


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
        assert process.stdout is not None
        assert process.stdout.read(4) == b"once"
        process.send_signal(signal.SIGINT)
        told = process.communicate()[1]
    assert process.returncode == 130
    assert told.startswith(b"note: the model takes at most ")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_serve_exits_with_130_and_leaves_nothing_running(
    paced_tar: Path, free_ports: list[int]
) -> None:
    cog = free_ports[0]
    environment = {
        **os.environ,
        **dict(zip(PORTS, map(str, free_ports), strict=False)),
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
        assert any(f":{cog}" in line for line in lines), lines
        server.send_signal(signal.SIGINT)
        assert server.wait(240) == 130
    finally:
        server.terminate()
    for port in free_ports[: len(PORTS)]:
        assert _is_free(port), f"port {port} is still taken"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_start_that_takes_too_long_names_its_phase_and_the_setting(
    paced_tar: Path, free_ports: list[int], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    variables = dict(zip(PORTS, map(str, free_ports), strict=False))
    engine = {"COG_TRITON_ENGINE_PYTHON": str(python), "COG_SETUP_TIMEOUT": "5"}
    result = cog_triton("serve", str(paced_tar), **variables, **engine)
    assert result.returncode == 1
    line = one_coded_line(result, "E2106")
    assert re.search(r"not within COG_SETUP_TIMEOUT, while (loading the engine|starting Cog)\.", line)


def test_a_taken_port_is_named_with_its_variable(paced_tar: Path, free_ports: list[int]) -> None:
    with socket.create_server(("127.0.0.1", free_ports[0])):
        result = cog_triton("serve", str(paced_tar), "--port", str(free_ports[0]))
    assert result.returncode == 2
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("E1007")
    assert str(free_ports[0]) in message
    assert "PORT" in message


def compiled_engine(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a compiled engine's tar, and a machine with two GPUs and the library, all stood in for."""
    make_gpus(folder / "bin", sm=90, count=2, name="Stand-in", memory_mib=81559, free_mib=70_000)
    python = str(write_engine_python(folder))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return make_compiled_model(folder / "model").tar, {"PATH": path, "COG_TRITON_ENGINE_PYTHON": python}


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="there is an NVIDIA driver")
def test_inspect_gpu_gives_the_runners_verdict(tmp_path: Path) -> None:
    tar, environment = compiled_engine(tmp_path)
    result = cog_triton("inspect", "--gpu", str(tar), **environment)
    assert result.returncode == 0, result.stderr
    assert "here        Stand-in, SM 90, 68.4 GiB of 79.6 GiB free; Stand-in" in result.stdout
    assert "verdict     this machine can run it" in result.stdout
    make_gpus(tmp_path / "bin")
    result = cog_triton("inspect", "--gpu", str(tar), **environment)
    assert result.returncode == 2
    assert "cog-triton-runner-90 image" in one_coded_line(result, "E1322")
    make_gpus(tmp_path / "bin", count=0)
    result = cog_triton("inspect", "--gpu", str(tar), **environment)
    assert "no NVIDIA GPU" in result.stdout
    one_coded_line(result, "E1323")
