"""Servers to be measured, on free ports of this machine: the whole stack, and Cog with a mock."""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perf.processes import processes
from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports

HOST = "127.0.0.1"
MODEL = "paced"
"""Name of the model in the OpenAI-compatible API."""
_TRITON_PORT = re.compile(r"--http-port=(\d+)")
_MOST_STREAMS = 600
"""Limit above the streams of any load, so that none is refused."""
_READY_TIMEOUT_S = 500.0
ENGINE_START_TIMEOUT_S = 1200.0
"""Time for a large engine: on a busy machine importing vLLM alone takes minutes."""


@dataclass(frozen=True)
class Stack:
    """A server that is ready. Only a whole stack has ports besides Cog's."""

    server: CogServer
    start_s: float = 0.0
    """Time from the runner's start to READY."""
    triton_port: int = 0
    triton_url: str = ""
    triton_grpc: str = ""
    """Host and port."""
    metrics_url: str = ""
    openai_url: str = ""

    @property
    def triton_itself_url(self) -> str:
        """Triton's HTTP API on loopback, behind its front."""
        commands = (each.command for each in processes(self.session))
        return next(f"http://{HOST}:{found[1]}" for each in commands if (found := _TRITON_PORT.search(each)))

    @property
    def session(self) -> int:
        """Id of the process session that all its processes are in."""
        return self.server.pid


@contextmanager
def whole_stack(
    folder: Path,
    settings: Mapping[str, str],
    *,
    engine_python: str = sys.executable,
    log_name: str = "runner",
    timeout_s: float = _READY_TIMEOUT_S,
) -> Iterator[Stack]:
    """Start the runner on the engine that ``settings`` name. A paced engine needs no other Python."""
    cog, http, grpc, metrics, api = free_ports(5)
    environment = {
        "COG_WEIGHTS": "",
        "COG_MAX_CONCURRENCY": str(_MOST_STREAMS),
        "COG_TRITON_CACHE": str(folder / "cache"),
        "COG_TRITON_ENGINE_PYTHON": engine_python,
        "TRITON_HOST": HOST,
        "TRITON_HTTP_PORT": str(http),
        "TRITON_GRPC_PORT": str(grpc),
        "TRITON_METRICS_PORT": str(metrics),
        "OPENAI_HOST": HOST,
        "OPENAI_PORT": str(api),
        "OPENAI_MODELS": MODEL,
        "OPENAI_MAX_REQUESTS": str(_MOST_STREAMS),
        **settings,
    }
    log_path = folder / f"{log_name}.log"
    started_s = time.monotonic()
    with CogServer("runner", host=HOST, port=cog, log_path=log_path, extra=environment) as server:
        server.wait_ready(timeout_s)
        start_s = time.monotonic() - started_s
        url = f"http://{HOST}"
        urls = (f"{url}:{http}", f"{HOST}:{grpc}", f"{url}:{metrics}/metrics", f"{url}:{api}")
        yield Stack(server, start_s, http, *urls)


@contextmanager
def mock(folder: Path) -> Iterator[Stack]:
    """Start Cog with the runner of ``mock_cog_triton``; it has no Triton."""
    (port,) = free_ports(1)
    extra = {"COG_MAX_CONCURRENCY": str(_MOST_STREAMS)}
    log_path = folder / "mock.log"
    with CogServer("mock_cog_triton", host=HOST, port=port, log_path=log_path, extra=extra) as server:
        server.wait_ready(_READY_TIMEOUT_S)
        yield Stack(server)
