"""Loads the engine of this process: in the engine server, or in an engine child."""

from __future__ import annotations

import importlib
from contextlib import suppress

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.engines import EngineStartFailed, as_coded
from runner.engines.protocol.adapter import Engine, Sink
from runner.engines.protocol.arrival import await_arrival
from runner.engines.server.start import Start
from runner.supervision.tuning import uncollected


def load_engine(start: Start, sink: Sink) -> Engine:
    """Wait for the engine's files, and load it. Raises a CodedError."""
    kind = find_kind(start.engine_kind)
    if kind.preload is not None:
        with suppress(Exception):  # A failure shows when the engine is loaded.
            importlib.import_module(kind.preload)
    await_arrival(start.arrival)
    try:
        with uncollected():
            engine: Engine = importlib.import_module(kind.adapter).load(start.engine_dir, sink, start.options)
            return engine
    except CodedError:
        raise
    except Exception as exc:
        raise as_coded(exc, EngineStartFailed, kind.name) from exc
