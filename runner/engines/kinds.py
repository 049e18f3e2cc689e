"""Engine kinds by name. A factory imports its kind's heavy libraries only when it is called."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.tensorrt_llm_config import read_compiled_config
from errors.settings import InvalidSetting
from runner.engines.protocol.adapter import Engine, Sink

Factory = Callable[[Path, Sink, Mapping[str, str]], Engine]


def _transformers(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.transformers.adapter import load

    return load(engine_dir, sink, options)


def _paced(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.paced.engine import load

    return load(engine_dir, sink, options)


def _tensorrt_llm(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.tensorrt_llm.adapter import load

    return load(engine_dir, sink, options)


def _vllm(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.vllm.adapter import load

    return load(engine_dir, sink, options)


FACTORIES: dict[str, Factory] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "paced": _paced,
    "tensorrt_llm": _tensorrt_llm,
}


_PRELOADED = {"transformers": "runner.engines.transformers.adapter", "vllm": "torch"}
"""What takes longest to import and reads neither the engine nor an environment that the engine decides on.

NOTE: not vllm itself, which does; nor tensorrt_llm, which starts MPI in whoever imports it.
"""


_LIBRARIES = {
    "transformers": ("torch", "transformers"),
    "vllm": ("torch", "transformers", "vllm"),
    "tensorrt_llm": ("torch", "transformers", "tensorrt_llm"),
}
"""What takes long to import, by kind."""


def libraries(engine_kind: str) -> tuple[str, ...]:
    """The packages whose import takes long; none for a kind that is ours alone."""
    return _LIBRARIES.get(engine_kind, ())


def preload(engine_kind: str) -> None:
    """Import what the engine will need, while its files are on their way. Failures show when it is loaded."""
    if (module := _PRELOADED.get(engine_kind)) is not None:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def num_ranks(engine_kind: str, engine_dir: Path) -> int:
    """How many processes the engine needs that ``mpirun`` must start; 1: the worker itself is enough."""
    if engine_kind != "tensorrt_llm":
        return 1
    return read_compiled_config(engine_dir).world_size


def factory(engine_kind: str) -> Factory:
    """The factory of an engine kind; an unknown kind is E1006, naming the known ones."""
    if engine_kind not in FACTORIES:
        raise InvalidSetting(name="engine kind", expected=f"one of {', '.join(FACTORIES)}", value=engine_kind)
    return FACTORIES[engine_kind]
