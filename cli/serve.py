"""Serve a model or an engine on this machine, in a Cog server that is started here."""

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from builder.engine_here import engine_here
from builder.model_source import find_source, is_config
from builder.weights.files import cache_folder
from cli.curl_forms import ready_lines
from cli.inspect import describe
from cli.progress import told_end, told_progress, wait_ready
from engine.inspect import read_manifest
from engine.kinds import KINDS
from engine.machine.gpu import visible_gpus
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.machine.root import IS_CHECKOUT, SOURCE_ROOT
from engine.pooling import MODULES_NAME
from errors.machine import GpuRequired
from errors.requests import InvalidInput
from errors.settings import InvalidSetting
from runner.api.supervisor import openai_listener
from runner.cog_server.launch import CogServer
from runner.settings.ports import LOOPBACK, Listener, check_ports_free
from runner.settings.settings import Settings, load_settings
from runner.triton_server.front.supervisor import triton_listeners

LOOKING_UP = "looking up the model"
_OPTIONS = {"PORT": "port", "NODES": "nodes", "NODE_RANK": "node_rank", "HEAD_ADDRESS": "head"}
"""Options that set variables."""
_HOSTS = ("TRITON_HOST", "OPENAI_HOST")
DEMO_DIR = SOURCE_ROOT / ".demo" if IS_CHECKOUT else cache_folder() / "demo"
EXAMPLE = SOURCE_ROOT / "builder" / "examples" / "tiny" / "config.yaml"
_READY_TIMEOUT_S = 3600.0
"""Time to get ready without COG_SETUP_TIMEOUT."""
_BESIDE_SETUP_S = 30.0
"""Time for Cog's server to start, and to report that a set-up took too long."""


def engine_environment(engine: str) -> dict[str, str]:
    """Return the runner's variables for the engine: ENGINE_DIR for a folder, COG_WEIGHTS for a tar.

    NOTE: until Python 3.13, ``Path.resolve`` raises a RuntimeError for links that lead to each other.
    """
    if Path(engine).is_dir():
        return {"ENGINE_DIR": os.path.realpath(engine), "COG_WEIGHTS": "", "MODEL_ID": ""}
    is_url = "://" in engine
    return {"COG_WEIGHTS": engine if is_url else os.path.realpath(engine)}


def check_kind(model: str, kind: str | None) -> None:
    """Raise E1005 if a kind is given but ``model`` already has one."""
    is_there = "://" in model or Path(model).exists()
    if kind is not None and (is_config(model) or (is_there and find_source(model, kind=kind) is None)):
        raise InvalidInput(name="--engine", expected="left out for a build config or an engine", value=kind)


def make_engine(model: str, kind: str | None) -> str:
    """Return the engine that ``model`` names, or make one of it and return its folder."""
    check_kind(model, kind)
    if kind is not None and KINDS[kind].needs_gpu and not visible_gpus():
        raise GpuRequired(engine_kind=kind, remedy="leave out --engine")
    file = find_source(model, kind=kind)
    if file is None:
        return model
    with told_progress() as (report, progress):
        progress(0, None, LOOKING_UP)
        return str(engine_here(file, report=report, progress=progress))


def python_environment(kind: str) -> dict[str, str]:
    """Return the variable for the engine's Python, if the checkout has an environment for its kind."""
    return {ENGINE_PYTHON_VARIABLE: engine_python(folder=KINDS[kind].checkout_environment)}


def on_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Set the addresses that ``environment`` does not set, so that only this machine is served."""
    return {name: LOOPBACK for name in _HOSTS if not environment.get(name)}


@contextmanager
def named_by_option(options: argparse.Namespace, **attributes: str) -> Iterator[None]:
    """Provide a context in which E1006 of a variable names the option that was given in its place."""
    try:
        yield
    except InvalidSetting as exc:
        name = attributes.get(str(exc.facts["name"]))
        if name is None or getattr(options, name) is None:
            raise
        raise InvalidSetting(**{**exc.facts, "name": f"--{name.replace('_', '-')}"}) from exc


def all_listeners(settings: Settings, host: str) -> list[Listener]:
    """List where a runner listens. ``host`` is that of Cog's server."""
    cog = Listener(host, settings.cog.port, "Cog's server", "PORT")
    openai = (openai_listener(settings),) if settings.openai_port else ()
    return [cog, *triton_listeners(settings), *openai]


def check_all_ports_free(settings: Settings, host: str) -> None:
    """Raise E1007 if a port is in use, before an engine is downloaded or made for nothing."""
    check_ports_free(*all_listeners(settings, host))


def run(options: argparse.Namespace) -> int:
    extra = dict.fromkeys(_HOSTS, options.host) if options.host else on_loopback(os.environ)
    given = {name: getattr(options, option) for name, option in _OPTIONS.items()}
    extra |= {name: value for name, value in given.items() if value is not None}
    with named_by_option(options, **_OPTIONS):
        settings = load_settings({**os.environ, **extra})
    host, port = options.host or LOOPBACK, settings.cog.port
    if settings.node_rank == 0:
        check_all_ports_free(settings, host)
    named = options.model or settings.weights or os.environ.get("ENGINE_DIR") or settings.model_id
    engine = make_engine(str(named or EXAMPLE), options.kind)
    extra |= engine_environment(engine)
    manifest = read_manifest(engine)
    extra |= python_environment(manifest.engine_kind)
    print(describe(manifest), flush=True)
    if settings.node_rank > 0:
        from runner.stack.follower.run import follow

        return follow(load_settings({**os.environ, **extra}), host)
    log_path = settings.cache_dir / "logs" / f"runner-{port}.log"
    grace_s = settings.stop_grace_s
    server = CogServer("runner", host=host, port=port, log_path=log_path, extra=extra, stop_grace_s=grace_s)
    with told_end(server):
        print(f"starting; log: {log_path}", flush=True)
        limit_s = settings.cog.setup_timeout_s
        wait_ready(server, _READY_TIMEOUT_S if limit_s is None else limit_s + _BESIDE_SETUP_S)
        embeds = MODULES_NAME in manifest.files
        print(*ready_lines(settings, cog_host=host, embeds=embeds), sep="\n", flush=True)
        server.wait()
    return 0
