"""The servers that ``perf peers`` compares, by name; all are resident at the same time."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from perf.peers.engine import Engine
from perf.peers.vllm_serve import vllm_serve
from perf.routers import ROUTERS, router
from perf.servers import ENGINE_START_TIMEOUT_S, Stack, whole_stack

NAMES = {
    "slot": "our slot, by Triton itself",
    "triton-front": "our slot, by port 8000",
    "cog-json": "Cog, JSON",
    "cog-events": "Cog, events",
    "api-N": "our API server, OPENAI_PROCESSES=N",
    "vllm-N": "vllm serve --api-server-count N",
    "vllm-rust": "vllm serve with VLLM_USE_RUST_FRONTEND=1",
    **dict.fromkeys(ROUTERS, "this router, with two of our stacks behind it"),
}
_NAME = re.compile(rf"{'|'.join(name for name in NAMES if name[-2:] != '-N')}|(api|vllm)-([1-9]\d?)")
_VLLM = "vllm"
_MOST_STREAMS = "2048"


class Endpoint(NamedTuple):
    """Place that requests of a ``kind`` (requests.py) go to; the server's processes are in ``session``."""

    kind: str
    url: str
    session: int
    engine: Engine
    metrics_url: str = ""


def server_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(NAMES)}")
    return text


def can_serve(name: str, engine: Engine) -> bool:
    """Return False for vLLM's servers on an engine of another kind."""
    return name in ROUTERS or not name.startswith("vllm-") or engine.kind == _VLLM


@contextmanager
def resident(names: Sequence[str], engines: dict[str, Engine], folder: Path) -> Iterator[dict[str, Endpoint]]:
    """Start all of them on each engine, ours first; vLLM's only on engines of its kind."""
    with ExitStack() as opened:
        found = {}
        for label, engine in engines.items():
            place = folder / (label or "servers")
            place.mkdir(exist_ok=True)
            ours = _stacks(names, engine, place, opened)
            behind = [ours[1].openai_url] if _has_routers(names) else []
            if behind:
                behind.append(_stack(1, engine, place, opened, "stack-behind").openai_url)
            for name in names:
                full_name = f"{label}/{name}" if len(engines) > 1 else name
                if name in ROUTERS:
                    _say(f"starting {name}")
                    front = opened.enter_context(router(name, behind, place / name))
                    found[full_name] = Endpoint("openai", front.url, front.session, engine)
                elif not name.startswith("vllm-"):
                    found[full_name] = _endpoint(name, ours, engine)
                elif can_serve(name, engine):
                    found[full_name] = _serve(name, engine, place, opened)
        yield found


def _stacks(names: Sequence[str], engine: Engine, folder: Path, opened: ExitStack) -> dict[int, Stack]:
    """Start a stack for each number of API server processes; one is enough for all other servers of ours."""
    counts = {int(name.partition("-")[2]) for name in names if name.startswith("api-")}
    if _has_routers(names) or (not counts and not all(name.startswith("vllm-") for name in names)):
        counts.add(1)
    return {count: _stack(count, engine, folder, opened, f"stack-{count}") for count in sorted(counts)}


def _has_routers(names: Sequence[str]) -> bool:
    return not set(ROUTERS).isdisjoint(names)


def _stack(processes: int, engine: Engine, folder: Path, opened: ExitStack, log_name: str) -> Stack:
    _say(f"starting our stack, {processes} API server processes")
    settings = {
        **engine.variables,
        **dict.fromkeys(("COG_MAX_CONCURRENCY", "OPENAI_MAX_REQUESTS"), _MOST_STREAMS),
        "ENGINE_DIR": str(engine.folder),
        "OPENAI_PROCESSES": str(processes),
        "COG_LOG_LEVEL": "warning",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # As for vLLM's own server; greedy requests do without a sampler.
        "TRITON_START_TIMEOUT": str(ENGINE_START_TIMEOUT_S),
    }
    options: dict[str, Any] = {"log_name": log_name, "timeout_s": ENGINE_START_TIMEOUT_S}
    started = opened.enter_context(whole_stack(folder, settings, engine_python=engine.python, **options))
    _say(f"READY after {started.start_s:.1f} s")
    return started


def _endpoint(name: str, stacks: dict[int, Stack], engine: Engine) -> Endpoint:
    stack = stacks[int(name[4:]) if name.startswith("api-") else min(stacks)]
    places = {
        "slot": ("slot", stack.triton_itself_url),
        "triton-front": ("slot", stack.triton_url),
        "cog-json": ("json", stack.server.url),
        "cog-events": ("sse", stack.server.url),
    }
    kind, url = places.get(name, ("openai", stack.openai_url))
    return Endpoint(kind, url, stack.session, engine, stack.metrics_url)


def _serve(name: str, engine: Engine, folder: Path, opened: ExitStack) -> Endpoint:
    _say(f"starting {name}")
    is_rust = name == "vllm-rust"
    count = 1 if is_rust else int(name.partition("-")[2])
    variables = {"VLLM_USE_RUST_FRONTEND": "1"} if is_rust else {}
    server = vllm_serve(engine, folder / f"{name}.log", count, variables)
    url, session = opened.enter_context(server)
    return Endpoint("openai", url, session, engine)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
