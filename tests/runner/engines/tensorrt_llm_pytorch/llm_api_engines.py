"""Engines of the LLM API for the tests: a folder, and the engine server that runs the stand-in on it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.vllm_engines import make_python

KIND = "tensorrt_llm_pytorch"
LIBRARY = Path(__file__).resolve().parents[3] / "standins" / "llm_api"
VOCAB_SIZE = 300
MAX_SEQ_LEN = 4096


def make_directory(path: Path, **arguments: Any) -> Path:
    path.mkdir(exist_ok=True)
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_SEQ_LEN}
    (path / "config.json").write_text(json.dumps(config))
    (path / "llm_args.json").write_text(json.dumps(arguments))
    return path


class Recorded(Listening):
    """A client that also reads what the library got."""

    def __init__(self, server: EngineServerUnderTest, folder: Path) -> None:
        super().__init__(server)
        self._folder = folder

    def llm(self) -> dict[str, Any]:
        return self._read_record("llm")

    def request(self, number: int = 1) -> dict[str, Any]:
        """Return the arguments of a request, by the order in which they came."""
        return self._read_record(f"request-{number}")

    def _read_record(self, name: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text())
        return record


@contextmanager
def started(
    directory: Path, folder: Path, fault: str = "", **options: str
) -> Iterator[EngineServerUnderTest]:
    folder.mkdir(exist_ok=True)
    environment = {"LLM_API_RECORD": str(folder), "LLM_API_FAULT": fault}
    # The folder may have packages, too.
    python = make_python(folder / "python", sys.executable, Path(f"{LIBRARY}:{folder}"))
    server = EngineServerUnderTest(KIND, directory, options, folder, environment=environment, python=python)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running(directory: Path, folder: Path, fault: str = "", **options: str) -> Iterator[Recorded]:
    with started(directory, folder, fault, **options) as server, Recorded(server, folder) as client:
        yield client
