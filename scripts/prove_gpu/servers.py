"""The servers that are measured: our whole stack, and vLLM's own OpenAI server as its peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.cog_server import CogServer

HOST = "127.0.0.1"
COG_PORT, TRITON_PORT, METRICS_PORT, OPENAI_PORT = 5600, 8600, 8602, 8700
_START_TIMEOUT_S = 400.0


@contextmanager
def stack(work: Path, name: str, settings: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Our runner, ready: Cog's URL, and the seconds from its start to READY."""
    extra = {
        "COG_WEIGHTS": "",
        "TRITON_HOST": HOST,
        "TRITON_HTTP_PORT": str(TRITON_PORT),
        "TRITON_GRPC_PORT": "8601",
        "TRITON_METRICS_PORT": str(METRICS_PORT),
        "OPENAI_PORT": "0",
        "TRITON_START_TIMEOUT": str(_START_TIMEOUT_S),
        "COG_TRITON_CACHE": str(work / "cache"),
        "COG_MAX_CONCURRENCY": "1024",
        "COG_LOG_LEVEL": "warning",
        **settings,
    }
    started_s = time.monotonic()
    with CogServer("runner", host=HOST, port=COG_PORT, log_path=work / f"{name}.log", extra=extra) as server:
        server.wait_ready(_START_TIMEOUT_S)
        yield server.url, time.monotonic() - started_s


@contextmanager
def openai(
    work: Path, python: str, engine: Path, arguments: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """vLLM's API server on the same engine with the same arguments, logging nothing per request."""
    flags = [part for name, value in arguments.items() for part in _flag(name, value)]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(engine)]
    command += ["--served-model-name", "m", "--host", HOST, "--port", str(OPENAI_PORT), *flags]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    started_s = time.monotonic()
    with (work / "openai.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT
        )
    url = f"http://{HOST}:{OPENAI_PORT}"
    try:
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() - started_s > _START_TIMEOUT_S:
                sys.exit(f"vLLM's server did not start: {(work / 'openai.log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield url, time.monotonic() - started_s
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def slot_metrics() -> dict[str, float]:
    """The slot's and the engine's counters, by name with labels."""
    with urllib.request.urlopen(f"http://{HOST}:{METRICS_PORT}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("cog_triton_")
    }


def _flag(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, json.dumps(value) if isinstance(value, (dict, list)) else str(value)]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310
            return True
    except (urllib.error.URLError, OSError):
        return False
