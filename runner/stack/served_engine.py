"""The engine that a runner serves: found or fetched as the settings say, refused if it can't run here."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.cache.store import open_engine
from engine.directory import Engine, load
from engine.kinds import KINDS, supports
from engine.machine.gpu import visible_gpus
from engine.machine.preflight import check_image, check_runs_here, installed_version
from engine.machine.python import ENGINE_PYTHON_VARIABLE
from engine.machine.root import SOURCE_ROOT
from engine.progress import Progress
from engine.tar.manifest import Manifest
from errors import find_in_text
from errors.engine_tar import EngineNotFound
from errors.settings import InvalidSetting, MissingRequirement
from runner.settings.settings import Settings
from runner.supervision.child import Log, how_ended, with_parent
from runner.triton_server.install import CPP_LIBRARY, cpp_backend_dir
from runner.triton_server.model_names import SLOT
from runner.triton_server.model_repository import CPP_BACKEND


def open_served_engine(
    settings: Settings, on_the_way: Callable[[Engine], None], progress: Progress, log: Log
) -> Engine:
    """Fetch or make the engine, and wait. Call ``on_the_way`` before, unless Triton needs all files."""

    def begin(engine: Engine) -> None:
        has_cpp_backend = KINDS[engine.manifest.engine_kind].has_cpp_backend
        # NVIDIA's C++ backend reads the engine when Triton starts.
        if not (has_cpp_backend and cpp_backend_dir(settings.triton_backend_dir) is not None):
            on_the_way(engine)

    check = partial(check_servable, settings)
    limit_gib = settings.cache_limit_gib
    if settings.weights:
        if settings.model_id:
            log("engine: MODEL_ID is not used, because COG_WEIGHTS names an engine")
        return open_engine(
            settings.weights,
            settings.cache_dir,
            limit_bytes=None if limit_gib is None else int(limit_gib * (1 << 30)),
            check=check,
            on_the_way=begin,
            progress=progress,
        )
    if settings.image and settings.model_id:
        check_image(settings.image, visible_gpus()[:1])  # Before the model is downloaded.
    engine = load(make_engine(settings, log) if settings.model_id else settings.engine_dir)
    check(engine.manifest)
    return engine


def make_engine(settings: Settings, log: Log) -> Path:
    """Have the builder make the engine of MODEL_ID, and wait. Return its folder. Raises its errors."""
    assert settings.model_id is not None, "asked only for a model"
    environment = {
        **os.environ,
        ENGINE_PYTHON_VARIABLE: settings.engine_python,
        "COG_TRITON_CACHE": str(settings.cache_dir),
        "PYTHONPATH": str(SOURCE_ROOT),
    }
    line = ""
    with subprocess.Popen(
        [*with_parent(os.getpid()), sys.executable, "-m", "builder.engine_here", settings.model_id],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as builder:
        for text in builder.stdout or ():
            line = text.rstrip()
            log(f"model: {line}")
    if builder.returncode:
        reason = f"could not be made an engine ({how_ended(builder.returncode)}: {line})"
        raise find_in_text(line) or EngineNotFound(place=settings.model_id, reason=reason)
    return Path(line)


def check_servable(settings: Settings, manifest: Manifest) -> None:
    """Raise for an engine that can't run on this machine with these settings, before it is fetched whole."""
    if settings.world_size not in (None, manifest.world_size):
        raise InvalidSetting(
            name="WORLD_SIZE",
            expected=f"{manifest.world_size}, the number of GPUs the engine was built for, or unset",
            value=settings.world_size,
        )
    if settings.kv_events is not None and not supports(manifest.engine_kind, "kv_events"):
        expected = f"unset, because engines of the kind {manifest.engine_kind} publish no KV events"
        raise InvalidSetting(name="KV_EVENTS", expected=expected, value=settings.kv_events)
    if settings.nodes > 1 and KINDS[manifest.engine_kind].follower is None:
        expected = f"1 with an engine of kind {manifest.engine_kind}, which runs on one machine"
        raise InvalidSetting(name="NODES", expected=expected, value=settings.nodes)
    # NVIDIA's C++ backend brings a TensorRT-LLM of its own.
    has_own_library = cpp_backend_dir(settings.triton_backend_dir) is not None
    if settings.server.get(SLOT, {}).get("triton_backend") == CPP_BACKEND and not has_own_library:
        raise MissingRequirement(
            what=f"tensorrtllm/{CPP_LIBRARY}, which triton_backend: tensorrtllm asks for,",
            remedy="set TRITONSERVER_BACKEND_DIR to the folder of NVIDIA's backends",
        )
    version = None if has_own_library else installed_version(settings.engine_python)
    gpus = visible_gpus() if settings.image or KINDS[manifest.engine_kind].needs_gpu else ()
    check_image(settings.image, gpus[: manifest.world_size], manifest.engine_kind)
    check_runs_here(manifest, gpus, version)
