"""Loads the engine of this process: of the engine server, or of a process below it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.engines import EngineStartFailed, as_coded
from runner.engines.protocol.adapter import Engine, Sink
from runner.engines.protocol.arrival import await_arrival
from runner.engines.server.start import Start
from runner.supervision.tuning import uncollected


@contextmanager
def start_errors(engine_kind: str) -> Iterator[None]:
    """Any error becomes E2108, unless it has a code."""
    try:
        yield
    except CodedError:
        raise
    except Exception as exc:
        raise as_coded(exc, EngineStartFailed, engine_kind) from exc


def load_engine(start: Start, sink: Sink) -> Engine:
    """Wait for the engine's files, and load it. Raises errors of its library as well."""
    kind = find_kind(start.engine_kind)
    if kind.preload is not None:
        with suppress(Exception):  # A failure shows when the engine is loaded.
            importlib.import_module(kind.preload)
    await_arrival(start.arrival)
    with uncollected():
        engine: Engine = importlib.import_module(kind.adapter).load(start.engine_dir, sink, start.options)
        return engine
