"""What is measured: our whole stack, vLLM's OpenAI server, and the engine in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from engine.machine.root import SOURCE_ROOT
from perf.prove_gpu.proof import Proof
from perf.resources import answers_ok
from perf.servers import HOST, MODEL, Stack, whole_stack
from runner.settings.ports import free_ports

Measure = Callable[[int, int, float], dict[str, Any]]
"""(streams, tokens, seconds between their beginnings) -> a row."""
_START_TIMEOUT_S = 400.0
_STOP_TIMEOUT_S = 30.0


def stack(proof: Proof, name: str) -> AbstractContextManager[Stack]:
    """Our runner on the engine.tar; ``name`` is its log's."""
    settings = {
        "COG_LOG_LEVEL": "warning",
        "COG_MAX_CONCURRENCY": "1024",
        "OPENAI_MAX_REQUESTS": "1024",
        "TRITON_START_TIMEOUT": str(_START_TIMEOUT_S),
        "COG_WEIGHTS": str(proof.tar),
    }
    return whole_stack(
        proof.work,
        settings,
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
        **os.environ,
        "VLLM_CACHE_ROOT": str(proof.engine_cache / "vllm"),
        "TRITON_CACHE_DIR": str(proof.engine_cache / "triton"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = proof.work / "openai.log"
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    url = f"http://{HOST}:{port}"
    try:
        while not answers_ok(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"vLLM's server did not start: {log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        _end(process)


@contextmanager
def resident(proof: Proof) -> Iterator[Measure]:
    """The engine in a process of its own (resident.py), which stays between its loads."""
    command = proof.program("resident", proof.engine_dir(), proof.workload, proof.engine_cache)
    with (proof.work / "in-process.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=SOURCE_ROOT
        )
    assert process.stdin is not None
    assert process.stdout is not None
    requests, results = process.stdin, process.stdout

    def read() -> dict[str, Any]:
        """Its next line that is a result: libraries print, too."""
        for line in results:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError("the engine's own process ended; its log is in the work folder")

    def measure(streams: int, tokens: int, gap_s: float) -> dict[str, Any]:
        print(json.dumps({"streams": streams, "tokens": tokens, "gap_s": gap_s}), file=requests, flush=True)
        return read()

    try:
        read()
        yield measure
    finally:
        requests.close()
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    process.kill()
    process.wait()


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
