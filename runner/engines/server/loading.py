"""Loading of an engine, in the engine server or a process below it."""

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.kinds import find_kind
from engine.machine.root import SET_UP
from errors.coded_error import CodedError, single_spaced
from errors.engines import EngineStartFailed, as_coded
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.arrival import await_arrival
from runner.engines.server.start import EngineStart
from runner.supervision.tuning import uncollected

log = logging.getLogger("cog_triton.engine")


@contextmanager
def start_errors(engine_kind: str) -> Iterator[None]:
    """Provide a context whose errors without a code become E2108."""
    try:
        yield
    except CodedError:
        raise
    except ModuleNotFoundError as exc:
        raise missing_package(engine_kind, str(exc.name), sys.executable) from exc
    except ImportError as exc:
        reason = f"{sys.executable} can't import its library: {single_spaced(exc)}"
        raise EngineStartFailed(engine_kind=engine_kind, reason=reason) from exc
    except Exception as exc:
        raise as_coded(exc, EngineStartFailed, engine_kind) from exc


def missing_package(engine_kind: str, name: str, python: str) -> EngineStartFailed:
    image = find_kind(engine_kind).image
    or_image = f", or use the image {image}-SM for your GPU" if image else ""
    reason = f"{python} has no package {name}; {SET_UP}, or install it there{or_image}."
    return EngineStartFailed(engine_kind=engine_kind, reason=reason)


def load_engine(start: EngineStart, sink: Sink) -> EngineAdapter:
    """Wait for the engine's files, and load it. Raises errors of its library as well."""
    kind = find_kind(start.engine_kind)
    with uncollected():
        with suppress(Exception):  # A failure shows when the engine is loaded.
            adapter = importlib.import_module(kind.adapter)
            if kind.prepares:
                adapter.prepare(start.options)
        await_arrival(start.arrival)
        engine: EngineAdapter = importlib.import_module(kind.adapter).load(
            start.engine_dir, sink, start.options
        )
        return engine


def keep_bytecode_of(start: EngineStart) -> None:
    """Keep the bytecode of the kind's libraries in the engine's cache, where that is needed."""
    if cache_dir := start.options.get("engine_cache_dir"):
        folder = Path(cache_dir) / "bytecode"
        if keep_bytecode(find_kind(start.engine_kind).libraries, folder):
            log.info("libraries came without bytecode: it is kept in %s", folder)


def keep_bytecode(packages: Iterable[str], folder: Path) -> bool:
    """Keep bytecode of this process and its children in ``folder`` if a package has none and can keep none.

    pip compiles what it installs; uv does not, and images often forbid Python to write. Then each start would
    compile again, which for torch and vLLM takes longer than the import itself. Call it before any of them is
    imported. ``PYTHONPYCACHEPREFIX`` takes precedence. Returns True if ``folder`` is used.
    """
    if sys.pycache_prefix is not None or not any(_stays_without(package) for package in packages):
        return False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return True


def _stays_without(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or spec.cached is None or Path(spec.cached).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)
