"""What is measured: our whole stack, vLLM's OpenAI server, and the engine in a process of its own."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from engine.machine.root import SOURCE_ROOT
from perf.prove_gpu.proof import Proof
from perf.servers import ENGINE_START_TIMEOUT_S, Stack, large_stack
from perf.vllm_server import VllmServer

Measure = Callable[[int, int, float], dict[str, Any]]
"""(streams, tokens, seconds between their beginnings) -> a row."""
_STOP_TIMEOUT_S = 30.0


def stack(proof: Proof, name: str) -> AbstractContextManager[Stack]:
    """Our runner on the engine.tar; ``name`` is its log's."""
    settings = {"COG_WEIGHTS": str(proof.tar)}
    return large_stack(proof.work, settings, engine_python=proof.options.engine_python, log_name=name)


@contextmanager
def openai(proof: Proof) -> Iterator[str]:
    """vLLM's API server on the same engine with the same arguments; its URL."""
    options = proof.options
    with VllmServer(
        options.engine_python,
        proof.engine_dir(),
        proof.arguments,
        proof.work / "openai.log",
        proof.engine_cache,
    ) as server:
        server.wait_ready(ENGINE_START_TIMEOUT_S)
        yield server.url


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
