"""Runners as people start them, once for all clients: ``cog-triton serve`` of the tiny model and of a script.

These tests run in ``.venv-clients`` (``make test-clients``), the runners in ``.venv``: they share HTTP alone.
"""

import importlib.util
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from runner.settings.ports import free_ports
from tests.clients.script import rules

ROOT = Path(__file__).parents[2]
PYTHON = str(ROOT / ".venv" / "bin" / "python")
HOST = "127.0.0.1"
MOST_REQUESTS = 8
CRASH_SEED = 990003
DEFAULT_PORTS = {
    "PORT": 5000,
    "TRITON_HTTP_PORT": 8000,
    "TRITON_GRPC_PORT": 8001,
    "TRITON_METRICS_PORT": 8002,
    "OPENAI_PORT": 9000,
}
_DEADLINE_S = 500.0
"""Deadline on a busy machine; an idle one takes seconds."""

if importlib.util.find_spec("openai") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/clients/"):
            item.add_marker(pytest.mark.timeout(600))


class Server:
    """A program that serves until it is closed, and writes to ``log``."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while not condition():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.2)

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=300)


class Runner(Server):
    def __init__(self, folder: Path, *engine: str, **environment: str) -> None:
        self._ports = dict(zip(DEFAULT_PORTS, free_ports(len(DEFAULT_PORTS)), strict=True))
        self.cog_url = self._url("PORT")
        self.openai_url = self._url("OPENAI_PORT")
        log = folder / "serve.log"
        settings = {name: str(port) for name, port in self._ports.items()}
        settings |= {"COG_TRITON_CACHE": str(folder / "cache"), "OPENAI_MAX_REQUESTS": str(MOST_REQUESTS)}
        settings |= {"TRITON_START_TIMEOUT": str(_DEADLINE_S), **environment}
        super().__init__([PYTHON, "-m", "cli", "serve", *engine], log, ROOT, {**os.environ, **settings})
        try:
            self.wait_until(lambda: "Ctrl-C stops it" in log.read_text())
        except BaseException:
            self.close()
            raise

    def with_its_ports(self, text: str) -> str:
        """Return what is written for the default ports, for those of this runner."""
        for name, port in DEFAULT_PORTS.items():
            text = text.replace(f"localhost:{port}", f"{HOST}:{self._ports[name]}")
        return text

    def _url(self, port: str) -> str:
        return f"http://{HOST}:{self._ports[port]}"

    def metric(self, name: str) -> float:
        """Return a value of the runner's /metrics, by name and labels as written there; 0 if it has none."""
        for line in self.get(f"{self.openai_url}/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def model(self) -> str:
        return json.loads(self.get(f"{self.openai_url}/v1/models"))["data"][0]["id"]

    @staticmethod
    def get(url: str) -> str:
        with urllib.request.urlopen(url, timeout=300) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("runner"))
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder, in which coding agents work."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory, workspace: Path) -> Iterator[Runner]:
    """Answers as ``script.py`` has it, in the form of Qwen 3: reasoning and tool calls.

    The engine crashes at CRASH_SEED, and is back later than the 10 s that a request waits for it.
    """
    folder = tmp_path_factory.mktemp("scripted")
    program = [PYTHON, "-m", "tests.runner.scripted_engine", str(folder / "engine")]
    subprocess.run(program, cwd=ROOT, check=True)
    (folder / "script.json").write_text(json.dumps(rules(workspace)))
    tar, script = folder / "engine" / "engine.tar", folder / "script.json"
    faults = "slow_start=15,requests"
    runner = Runner(folder, str(tar), COG_TRITON_SCRIPT=str(script), COG_TRITON_FAULTS=faults)
    yield runner
    runner.close()
