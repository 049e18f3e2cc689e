"""vLLM engines for the tests: a folder, and the engine server that runs the stand-in on it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.runner.engines.engine_server import EngineServerUnderTest
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
    """Return a Python that has the stand-in: the engine server's environment is not the test's."""
    path.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{library}"\nexec {python} "$@"\n')
    path.chmod(0o755)
    return str(path)


@contextmanager
def running(directory: Path, python: str, **options: str) -> Iterator[Listening]:
    with started(directory, python, **options) as server, Listening(server) as client:
        yield client


@contextmanager
def started(
    directory: Path, python: str, *, hang_timeout_s: float = 300.0, **options: str
) -> Iterator[EngineServerUnderTest]:
    with TemporaryDirectory() as folder:
        server = EngineServerUnderTest(
            "vllm", directory, options, Path(folder), python=python, hang_timeout_s=hang_timeout_s
        )
        try:
            yield server
        finally:
            server.stop()
