"""The servers that ``perf peers`` compares, by name; all are resident at the same time."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from errors.requests import InvalidInput
from perf.peers.engine import Engine
from perf.peers.triton_vllm import GENERATE, TRITON_VLLM, triton_vllm
from perf.servers import ENGINE_START_TIMEOUT_S, Stack, large_stack
from perf.vllm_server import ServerProcess, VllmServer

NAMES = {
    "slot": "our slot, by Triton itself",
    "triton-front": "our slot, by port 8000",
    "cog-json": "Cog, JSON",
    "cog-events": "Cog, events",
    "api-N": "our API server, OPENAI_PROCESSES=N",
    "vllm-N": "vllm serve --api-server-count N",
    "vllm-rust": "vllm serve with VLLM_USE_RUST_FRONTEND=1",
    TRITON_VLLM: "Triton with NVIDIA's vLLM backend (needs --vllm-backend)",
}
DEFAULT = ("vllm-rust", "vllm-1", "slot", "api-1", "cog-events", "cog-json")
_NAME = re.compile(r"slot|triton-front|cog-json|cog-events|vllm-rust|triton-vllm|(api|vllm)-([1-9]\d?)")


class Endpoint(NamedTuple):
    """Where requests of a ``kind`` (prove_gpu/client.py) go; the server's processes are in ``session``."""

    kind: str
    url: str
    session: int


def check_names(names: Sequence[str]) -> None:
    """Raises InvalidInput."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInput(name="servers", expected=f"some of {', '.join(NAMES)}", value=name)
    if len(set(names)) < len(names):
        raise InvalidInput(name="servers", expected="each only once", value=" ".join(names))


@contextmanager
def resident(
    names: Sequence[str], engine: Engine, folder: Path, backend: Path | None = None
) -> Iterator[dict[str, Endpoint]]:
    """All of them, ready. The first of ours starts alone and fills the engine's cache for the others.

    ``backend`` is the source of NVIDIA's vLLM backend, if it is among them.
    """
    counts = sorted(int(name.partition("-")[2]) for name in names if name.startswith("api-"))
    theirs = [name for name in names if name.startswith("vllm-") or name == TRITON_VLLM]
    if not counts and len(theirs) < len(names):
        counts = [1]
    with ExitStack() as opened:
        stacks: dict[int, Stack] = {}
        servers: dict[str, ServerProcess] = {}
        for processes in counts[:1]:
            stacks[processes] = opened.enter_context(_stack(processes, engine, folder))
        for name in theirs:
            servers[name] = opened.enter_context(_theirs(name, engine, folder, backend))
        for processes in counts[1:]:
            stacks[processes] = opened.enter_context(_stack(processes, engine, folder))
        for name, server in servers.items():
            _say(f"waiting for {name}")
            server.wait_ready(ENGINE_START_TIMEOUT_S)
        yield {
            name: Endpoint(
                GENERATE if name == TRITON_VLLM else "openai", servers[name].url, servers[name].session
            )
            if name in servers
            else _endpoint(name, stacks)
            for name in names
        }


def _endpoint(name: str, stacks: dict[int, Stack]) -> Endpoint:
    if name.startswith("api-"):
        stack = stacks[int(name.partition("-")[2])]
        return Endpoint("openai", stack.openai_url, stack.session)
    stack = stacks[min(stacks)]
    places = {
        "slot": ("slot", stack.triton_itself_url),
        "triton-front": ("slot", stack.triton_url),
        "cog-json": ("json", stack.server.url),
        "cog-events": ("sse", stack.server.url),
    }
    return Endpoint(*places[name], stack.session)


def _stack(processes: int, engine: Engine, folder: Path) -> AbstractContextManager[Stack]:
    _say(f"starting our stack, {processes} API server processes")
    settings = {
        **engine.variables,
        "ENGINE_DIR": str(engine.folder),
        "OPENAI_PROCESSES": str(processes),
    }
    return large_stack(folder, settings, engine_python=engine.python, log_name=f"stack-{processes}")


def _theirs(name: str, engine: Engine, folder: Path, backend: Path | None) -> ServerProcess:
    _say(f"starting {name}")
    if backend is not None and name == TRITON_VLLM:
        return triton_vllm(backend, engine, folder / name)
    is_rust = name == "vllm-rust"
    return VllmServer(
        engine.python,
        engine.folder,
        engine.arguments,
        folder / f"{name}.log",
        engine.cache,
        api_servers=1 if is_rust else int(name.partition("-")[2]),
        variables={**engine.variables, **({"VLLM_USE_RUST_FRONTEND": "1"} if is_rust else {})},
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
