"""vLLM engines for the tests: a folder, and the worker that runs the stand-in on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.engines.worker.command import EngineCommand
from runner.engines.worker.process import EngineProcess

from tests.runner.engines.listening import Listening

LIBRARY = Path(__file__).resolve().parents[3] / "standins" / "vllm_library"
"""A vLLM of the same names that needs no GPU."""


def make_vllm_directory(path: Path, vocab_size: int = 1000, **arguments: Any) -> Path:
    path.mkdir(exist_ok=True)
    config = {"vocab_size": vocab_size, "max_position_embeddings": 4096}
    (path / "config.json").write_text(json.dumps(config))
    (path / "engine_args.json").write_text(json.dumps(arguments))
    return path


def make_python(path: Path, python: str, library: Path = LIBRARY) -> str:
    """A Python that has the stand-in: the worker's environment is not the test's."""
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{library}"\nexec {python} "$@"\n')
    path.chmod(0o755)
    return str(path)


@contextmanager
def running(directory: Path, python: str, listening: Listening, **options: str) -> Iterator[EngineProcess]:
    engine = EngineProcess(EngineCommand(python, "vllm", directory, options, start_timeout_s=60), listening)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()
