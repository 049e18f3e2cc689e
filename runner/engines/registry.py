"""Engine kinds by name. A factory imports its kind's heavy libraries only when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from errors.prompt import InvalidSetting
from runner.engines.adapter import Engine, Sink

Factory = Callable[[Path, Sink, Mapping[str, str]], Engine]


def _transformers(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.transformers import load

    return load(engine_dir, sink, options)


def _paced(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.paced import load

    return load(engine_dir, sink, options)


def _vllm(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> Engine:
    from runner.engines.vllm import load

    return load(engine_dir, sink, options)


FACTORIES: dict[str, Factory] = {"transformers": _transformers, "paced": _paced, "vllm": _vllm}


def factory(engine_kind: str) -> Factory:
    """The factory of an engine kind; an unknown kind is E1006, naming the known ones."""
    if engine_kind not in FACTORIES:
        raise InvalidSetting(name="engine kind", expected=f"one of {', '.join(FACTORIES)}", value=engine_kind)
    return FACTORIES[engine_kind]
