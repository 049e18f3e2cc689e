"""What is measured: our whole stack, vLLM's OpenAI server, and the engine in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import urllib3

from engine.machine.root import SOURCE_ROOT
from perf.prove_gpu.proof import Proof
from perf.servers import HOST, MODEL, Stack, whole_stack
from runner.settings.ports import free_ports

_START_TIMEOUT_S = 400.0


def stack(proof: Proof, name: str, settings: Mapping[str, str]) -> AbstractContextManager[Stack]:
    """Our runner, ready. ``settings`` name the engine, and what is to differ."""
    common = {
        "COG_LOG_LEVEL": "warning",
        "COG_MAX_CONCURRENCY": "1024",
        "OPENAI_MAX_REQUESTS": "1024",
        "TRITON_START_TIMEOUT": str(_START_TIMEOUT_S),
    }
    return whole_stack(
        proof.work,
        {**common, **settings},
        engine_python=proof.options.engine_python,
        has_api=True,
        log_name=name,
        timeout_s=_START_TIMEOUT_S,
    )


@contextmanager
def openai(proof: Proof) -> Iterator[str]:
    """vLLM's API server on the same engine with the same arguments, logging nothing per request; its URL."""
    (port,) = free_ports(1)
    flags = [part for name, value in proof.arguments.items() for part in _flag(name, value)]
    command = [proof.options.engine_python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(proof.engine_dir()), "--served-model-name", MODEL, *flags]
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
def resident(proof: Proof) -> Iterator[Resident]:
    command = proof.program("resident", proof.engine_dir(), proof.workload, "--cache", proof.engine_cache)
    with (proof.work / "in-process.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=SOURCE_ROOT
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
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False
