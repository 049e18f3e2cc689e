"""Servers to be measured, on free ports of this machine: the whole stack, and Cog with a mock."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports

HOST = "127.0.0.1"
MOST_STREAMS = 600
"""More than any row of the budget has, so that none is refused."""
_READY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Stack:
    """A running server. ``session`` is the process session that all its processes are in."""

    cog_url: str
    triton_url: str
    session: int


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Exit with what ``main`` returns.

    SIGTERM is as Ctrl-C: the servers that it started are stopped, and the exit status is 130.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def whole_stack(engine_dir: Path, folder: Path, engine_python: str = sys.executable) -> Iterator[Stack]:
    """The runner's Cog server with Triton on an engine, ready. The paced engine needs no engine library."""
    (http,) = free_ports(1)
    extra = {"ENGINE_DIR": str(engine_dir), "COG_WEIGHTS": "", "TRITON_HTTP_PORT": str(http)}
    extra["COG_TRITON_ENGINE_PYTHON"] = engine_python
    with starting_stack(folder, extra) as server:
        server.wait_ready(_READY_TIMEOUT_S)
        yield Stack(server.url, f"http://{HOST}:{http}", server.pid)


@contextmanager
def starting_stack(folder: Path, extra: Mapping[str, str]) -> Iterator[CogServer]:
    """The runner's Cog server, just started: wait until it is ready. ``extra`` may name Triton's ports."""
    http, grpc, metrics = free_ports(3)
    surroundings = {
        "COG_TRITON_CACHE": str(folder / "cache"),
        "TRITON_HOST": HOST,
        "TRITON_HTTP_PORT": str(http),
        "TRITON_GRPC_PORT": str(grpc),
        "TRITON_METRICS_PORT": str(metrics),
        "OPENAI_PORT": "0",
        "COG_TRITON_ENGINE_PYTHON": sys.executable,
    }
    with _server("runner", folder, {**surroundings, **extra}) as server:
        yield server


@contextmanager
def mock(folder: Path) -> Iterator[Stack]:
    """Cog with the runner of ``mock_cog_triton``, ready; it has no Triton."""
    with _server("mock_cog_triton", folder, {}) as server:
        server.wait_ready(_READY_TIMEOUT_S)
        yield Stack(server.url, "", server.pid)


def _server(kind: str, folder: Path, extra: Mapping[str, str]) -> CogServer:
    (port,) = free_ports(1)
    extra = {"COG_MAX_CONCURRENCY": str(MOST_STREAMS), **extra}
    return CogServer(kind, host=HOST, port=port, log_path=folder / f"{kind}.log", extra=extra)
