"""What is measured: our whole stack, vLLM's OpenAI server as its peer, the engine in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from proof import HERE, Proof

from perf.bench.servers import HOST
from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports

_START_TIMEOUT_S = 400.0


@dataclass(frozen=True)
class Stack:
    """Our runner, ready. ``seconds``: from its start to READY."""

    cog_url: str
    openai_url: str
    triton_port: int
    metrics_port: int
    seconds: float

    @property
    def triton_url(self) -> str:
        return f"http://{HOST}:{self.triton_port}"

    def metrics(self) -> dict[str, float]:
        """The slot's and the engine's counters, by name with labels."""
        with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        return {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("cog_triton_")
        }


@contextmanager
def stack(proof: Proof, name: str, settings: Mapping[str, str]) -> Iterator[Stack]:
    """``settings`` name the engine, and what is to differ."""
    cog, http, grpc, metrics, api = free_ports(5)
    extra = {
        "COG_WEIGHTS": "",
        "COG_TRITON_ENGINE_PYTHON": proof.options.engine_python,
        "TRITON_HOST": HOST,
        "TRITON_HTTP_PORT": str(http),
        "TRITON_GRPC_PORT": str(grpc),
        "TRITON_METRICS_PORT": str(metrics),
        "OPENAI_HOST": HOST,
        "OPENAI_PORT": str(api),
        "OPENAI_MODELS": "m",
        "OPENAI_MAX_REQUESTS": "1024",
        "TRITON_START_TIMEOUT": str(_START_TIMEOUT_S),
        "COG_TRITON_CACHE": str(proof.work / "cache"),
        "COG_MAX_CONCURRENCY": "1024",
        "COG_LOG_LEVEL": "warning",
        **settings,
    }
    log = proof.work / f"{name}.log"
    started_s = time.monotonic()
    with CogServer("runner", host=HOST, port=cog, log_path=log, extra=extra) as server:
        server.wait_ready(_START_TIMEOUT_S)
        seconds = time.monotonic() - started_s
        yield Stack(server.url, f"http://{HOST}:{api}", http, metrics, seconds)


@contextmanager
def openai(proof: Proof) -> Iterator[str]:
    """vLLM's API server on the same engine with the same arguments, logging nothing per request; its URL."""
    (port,) = free_ports(1)
    flags = [part for name, value in proof.arguments.items() for part in _flag(name, value)]
    command = [proof.options.engine_python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(proof.engine_dir()), "--served-model-name", "m", *flags]
    command += ["--host", HOST, "--port", str(port), "--disable-log-stats", "--disable-uvicorn-access-log"]
    environment = {
        "VLLM_CACHE_ROOT": str(proof.engine_cache / "vllm"),
        "TRITON_CACHE_DIR": str(proof.engine_cache / "triton"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = proof.work / "openai.log"
    started_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT
        )
    url = f"http://{HOST}:{port}"
    try:
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() - started_s > _START_TIMEOUT_S:
                raise RuntimeError(f"vLLM's server did not start: {log.read_text()[-3000:]}")
            time.sleep(0.2)
        proof.facts["openai_start_s"] = time.monotonic() - started_s
        yield url
    finally:
        _end(process)


class Resident:
    """The engine in a process of its own (resident.py), between its loads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, streams: int, tokens: int, gap_s: float = 0.0) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"streams": streams, "tokens": tokens, "gap_s": gap_s}) + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """Its next line that is a result: libraries print, too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                result: dict[str, Any] = json.loads(line)
                return result
        raise RuntimeError("the engine's own process ended; its log is in the work folder")


@contextmanager
def resident(proof: Proof, mode: str) -> Iterator[Resident]:
    command = [proof.options.engine_python, str(HERE / "resident.py"), str(proof.engine_dir())]
    command += [str(proof.workload), "--mode", mode, "--cache", str(proof.engine_cache)]
    with (proof.work / f"in-process-{mode}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        engine = Resident(process)
        engine.read()
        yield engine
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
