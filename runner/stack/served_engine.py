"""The engine that a runner serves: found or fetched as the settings say, refused if it can't run here."""

from collections.abc import Callable
from functools import partial

from engine.cache.store import open_engine
from engine.directory import Engine, load
from engine.kinds import KINDS
from engine.machine.gpu import visible_gpus
from engine.machine.preflight import check_runs_here, installed_version
from engine.progress import Progress
from engine.tar.manifest import Manifest
from errors.settings import InvalidSetting, MissingRequirement
from runner.settings.settings import Settings
from runner.stack.made_engine import make_engine
from runner.supervision.child import Log
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
    engine = load(make_engine(settings, log) if settings.model_id else settings.engine_dir)
    check(engine.manifest)
    return engine


def check_servable(settings: Settings, manifest: Manifest) -> None:
    """Raise for an engine that can't run on this machine with these settings, before it is fetched whole."""
    if settings.world_size not in (None, manifest.world_size):
        raise InvalidSetting(
            name="WORLD_SIZE",
            expected=f"{manifest.world_size}, the number of GPUs the engine was built for, or unset",
            value=settings.world_size,
        )
    # NVIDIA's C++ backend brings a TensorRT-LLM of its own.
    has_own_library = cpp_backend_dir(settings.triton_backend_dir) is not None
    if settings.server.get(SLOT, {}).get("triton_backend") == CPP_BACKEND and not has_own_library:
        raise MissingRequirement(
            what=f"tensorrtllm/{CPP_LIBRARY}, which triton_backend: tensorrtllm asks for,",
            remedy="set TRITONSERVER_BACKEND_DIR to the folder of NVIDIA's backends",
        )
    version = None if has_own_library else installed_version(settings.engine_python)
    gpus = visible_gpus() if KINDS[manifest.engine_kind].needs_gpu else ()
    check_runs_here(manifest, gpus, version)
