"""Check what a runner needs of this machine and of the installation."""

import argparse
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from builder.model_source import best_kind
from cli.doctor_machine import check_disk, check_driver, check_gpus, check_machine, check_shared_memory
from cli.serve import all_listeners, engine_environment, python_environment
from engine.inspect import read_manifest
from engine.kinds import KINDS
from engine.machine.preflight import installed_version
from engine.machine.processes import commands_listening
from engine.machine.root import SET_UP, SOURCE_ROOT
from errors.coded_error import CodedError
from errors.settings import MissingRequirement
from runner.settings.ports import LOOPBACK, check_ports_free
from runner.settings.settings import Settings, load_settings
from runner.stack.served_engine import check_servable
from runner.triton_server.install import install_triton

_SERVING = ("cog", "nvidia-pytriton", "numpy", "tokenizers", "msgspec")
_ENGINES = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.libraries))
_OURS = re.compile(r" -m (runner\.|builder\.cog_server|cli )|/cog-triton ")
"""Parts of the command lines of our processes that listen at ports."""
_TIMEOUT_S = 60.0
_OK, _FAILED = 0, 2


def run(options: argparse.Namespace) -> int:
    failed = 0
    named = engine_environment(options.engine) if options.engine else {}
    # An invalid setting ends the command: it would fail all checks.
    settings = load_settings({**os.environ, **python_environment(best_kind()), **named})
    for name, check in _CHECKS.items():
        try:
            print(f"ok    {name}: {check(settings)}", flush=True)
        except CodedError as exc:
            failed += 1
            print(f"FAIL  {name}: {exc}", flush=True)
    if failed:
        print(f"\n{failed} of {len(_CHECKS)} checks failed.")
        return _FAILED
    print("\nAll checks passed.")
    return _measure() if options.perf else _OK


def _measure() -> int:
    """Run the measurements in a process of their own: they are no part of the product."""
    command = [sys.executable, "-m", "perf", "bench", "--layers", "--short"]
    return subprocess.run(command, cwd=SOURCE_ROOT, check=False).returncode


def _serving_environment(settings: Settings) -> str:
    versions = [f"Python {platform.python_version()}"]
    for name in _SERVING:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError as exc:
            raise MissingRequirement(what=name, remedy=SET_UP) from exc
    return ", ".join(versions)


def _engine_environment(settings: Settings) -> str:
    """Read the versions of the engines' libraries without importing them, as they are large."""
    version_of = installed_version(settings.engine_python)
    found = [f"{name} {version}" for name in _ENGINES if (version := version_of(name))]
    if not found:
        remedy = f"{SET_UP}, or name a Python with COG_TRITON_ENGINE_PYTHON"
        what = f"{' or '.join(_ENGINES)} in {settings.engine_python}, which can serve paced engines only,"
        raise MissingRequirement(what=what, remedy=remedy)
    return ", ".join(found)


def _triton(settings: Settings) -> str:
    """Run the server's binary, which shows whether its libraries load."""
    with tempfile.TemporaryDirectory() as folder:
        install = install_triton(Path(folder), settings.triton_backend_dir)
        done = subprocess.run(
            [str(install.server), "--help"],
            env=install.environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if "Usage:" not in done.stdout + done.stderr:  # Its exit code is 1 all the same.
        output = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
        what = f"what {install.server} needs ({output[-1]})"
        raise MissingRequirement(what=what, remedy=SET_UP)
    return f"{install.server} runs"


def _ports(settings: Settings) -> str:
    """Check the ports. Those that one of our runners has are reported, but are no failure."""
    listeners = all_listeners(settings, LOOPBACK)
    taken = {each: map(" ".join, commands_listening(each.port)) for each in listeners if not each.is_free()}
    ours = [each for each, commands in taken.items() if any(map(_OURS.search, commands))]
    free = [each for each in listeners if each not in ours]
    check_ports_free(*free)
    told = {"free": free, "used by your running runner": ours}
    ports = {state: ", ".join(str(each.port) for each in found) for state, found in told.items() if found}
    return "; ".join(map(": ".join, ports.items()))


def _engine(settings: Settings) -> str:
    """Check the engine, reading only the beginning of a tar."""
    source = settings.weights or settings.engine_dir
    if settings.weights is None and not any(settings.engine_dir.glob("*")):
        return "none named; `cog-triton doctor ENGINE` checks one"
    manifest = read_manifest(source)
    check_servable(settings, manifest)
    return f"{manifest.engine_kind} of {manifest.model_id or 'an unnamed model'} can run here"


_CHECKS: dict[str, Callable[[Settings], str]] = {
    "machine": check_machine,
    "driver": check_driver,
    "GPU": check_gpus,
    "serving environment": _serving_environment,
    "engine environment": _engine_environment,
    "Triton": _triton,
    "ports": _ports,
    "shared memory": check_shared_memory,
    "disk": check_disk,
    "engine": _engine,
}
