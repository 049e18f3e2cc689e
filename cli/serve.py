"""``cog-triton serve ENGINE``: the runner's Cog server and Triton on one engine, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from builder.build import build
from builder.weights.files import cache_folder
from cli.curl_forms import curl_forms
from cli.inspect import describe
from engine.inspect import read_manifest
from engine.machine.root import IS_CHECKOUT, SOURCE_ROOT
from runner.cog_server.launch import CogServer
from runner.settings.settings import load_settings

HELP = "serve an engine: Cog on 5000, Triton on 8000 to 8002, OpenAI-compatible API on 9000"
DESCRIPTION = (
    "Serve an engine until Ctrl-C. Settings are the runner's environment variables (SYSTEM_PROMPT, "
    "PROMPT_TEMPLATE, TRITON_HTTP_PORT, OPENAI_PORT, COG_MAX_CONCURRENCY, ...); see docs/settings.md."
)

LOOPBACK = "127.0.0.1"
_HOSTS = ("TRITON_HOST", "OPENAI_HOST")
DEMO_DIR = SOURCE_ROOT / ".demo" if IS_CHECKOUT else cache_folder() / "demo"
_READY_TIMEOUT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        nargs="?",
        help="engine.tar (path or URL) or engine folder; default: COG_WEIGHTS or ENGINE_DIR, "
        "else the tiny example",
    )
    parser.add_argument(
        "--host",
        help="address to listen on; default: 127.0.0.1, but TRITON_HOST and OPENAI_HOST where they are set",
    )
    parser.add_argument("--port", help="Cog's port (default: PORT or 5000)")


def engine_environment(engine: str) -> dict[str, str]:
    """The runner's variable for the engine: ENGINE_DIR for a folder, COG_WEIGHTS for a tar."""
    if Path(engine).is_dir():
        return {"ENGINE_DIR": str(Path(engine).resolve()), "COG_WEIGHTS": ""}
    is_url = "://" in engine
    return {"COG_WEIGHTS": engine if is_url else str(Path(engine).resolve())}


def on_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the addresses that ``environment`` does not set: only this machine is served."""
    return {name: LOOPBACK for name in _HOSTS if not environment.get(name)}


def run(options: argparse.Namespace) -> int:
    extra = dict.fromkeys(_HOSTS, options.host) if options.host else on_loopback(os.environ)
    if options.port is not None:
        extra["PORT"] = options.port
    settings = load_settings({**os.environ, **extra})
    engine = options.engine or settings.weights or os.environ.get("ENGINE_DIR") or _built_example_engine()
    extra |= engine_environment(str(engine))
    print(describe(read_manifest(engine)))
    host, port = options.host or LOOPBACK, settings.cog.port
    log_path = settings.cache_dir / "logs" / f"runner-{port}.log"
    with CogServer("runner", host=host, port=port, log_path=log_path, extra=extra) as server:
        print(f"starting; log: {log_path}", flush=True)
        server.wait_ready(_READY_TIMEOUT_S)
        print(f"ready: Cog at {server.url}, Triton at port {settings.triton_http_port} (HTTP),")
        url = f"http://localhost:{settings.openai_port}/"
        openai = f", OpenAI's API and a page to try it at {url}" if settings.openai_port else ""
        print(f"{settings.triton_grpc_port} (gRPC), {settings.triton_metrics_port} (metrics){openai}. Try:\n")
        for form in curl_forms(port, settings.triton_http_port, settings.openai_port):
            print(f"{form.command}\n", flush=True)
        print("Ctrl-C stops it.", flush=True)
        server.wait()
    return 0


def _built_example_engine() -> Path:
    """The tar of the tiny example model. It is rebuilt if the example has changed."""
    config = SOURCE_ROOT / "builder" / "examples" / "tiny" / "config.yaml"
    tar = DEMO_DIR / "tiny.tar"
    sources = [path for path in config.parent.rglob("*") if path.is_file()]
    if not tar.is_file() or tar.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        DEMO_DIR.mkdir(parents=True, exist_ok=True)
        build(config, tar)
    return tar
