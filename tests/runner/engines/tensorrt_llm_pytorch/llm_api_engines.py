"""Engines of the LLM API for the tests: a folder, and the engine server that runs the stand-in on it."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.settings.settings import load_settings
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


def events_config(folder: str) -> dict[str, Any]:
    """Return vLLM's ``kv_events_config`` with sockets in the folder, whose path has to be short."""
    endpoints = {"KV_EVENTS": f"ipc://{folder}/events", "KV_EVENTS_REPLAY": f"ipc://{folder}/replay"}
    config = load_settings(endpoints).kv_events_config
    assert config is not None
    return config


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
    directory: Path, folder: Path, fault: str = "", *, version: str | None = None, **options: str
) -> Iterator[EngineServerUnderTest]:
    """Start an engine server. ``version``: one of the stand-in's others."""
    folder.mkdir(exist_ok=True)
    environment = {"LLM_API_RECORD": str(folder), "LLM_API_FAULT": fault}
    environment |= {"LLM_API_VERSION": version} if version else {}
    # The folder may have packages, too.
    python = make_python(folder / "python", sys.executable, Path(f"{LIBRARY}:{folder}"))
    server = EngineServerUnderTest(KIND, directory, options, folder, environment=environment, python=python)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running(
    directory: Path, folder: Path, fault: str = "", *, version: str | None = None, **options: str
) -> Iterator[Recorded]:
    with (
        started(directory, folder, fault, version=version, **options) as server,
        Recorded(server, folder) as client,
    ):
        yield client
