"""Real servers for tests: Triton in a thread's event loop, Cog as a child; on free ports."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from runner.cog_server.launch import CogServer
from runner.service import Service
from runner.settings.ports import free_ports
from runner.settings.settings import load_settings
from tests.runner.paced_engine import PacedModel

T = TypeVar("T")

HOST = "127.0.0.1"
DEADLINE_S = 240.0
"""Long enough for a machine that is busy with other things: no test takes it when all is well."""

_START_DEADLINE_S = 500.0
"""torch and transformers alone take a minute to import where everybody else is busy as well."""

# NOTE: a pool that closes idle connections may close one that another request was just given.
KEEPS_ALL = httpx.Limits(max_keepalive_connections=None, keepalive_expiry=None)

SLOT = "/v2/models/tensorrt_llm"
ENSEMBLE = "/v2/models/ensemble"


def wait_until(condition: Callable[[], T], timeout_s: float = DEADLINE_S) -> T:
    """Ask again and again until the answer is true, and return it."""
    deadline_s = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s"
        time.sleep(0.002)
    return answer


def triton_environment(http: int, grpc: int, metrics: int) -> dict[str, str]:
    """Variables of a runner whose Triton listens on these ports of loopback."""
    return {
        "TRITON_HOST": HOST,
        "TRITON_HTTP_PORT": str(http),
        "TRITON_GRPC_PORT": str(grpc),
        "TRITON_METRICS_PORT": str(metrics),
        "OPENAI_PORT": "0",
        # The paced engine needs no engine environment.
        "COG_TRITON_ENGINE_PYTHON": sys.executable,
    }


class Counters:
    """The engine server's metrics, read from Triton's metrics port; they are up to a second old."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://{HOST}:{port}", timeout=DEADLINE_S)

    def __getitem__(self, name: str) -> float:
        """Return ``cog_triton_<name>``; labels as ``slot_ended_requests_total{reason="end"}``."""
        for line in self._client.get("/metrics").text.splitlines():
            if line.startswith(f"cog_triton_{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    @property
    def cancelled(self) -> float:
        return self['slot_ended_requests_total{reason="cancelled"}']

    @property
    def is_settled(self) -> bool:
        """True once all that was submitted has ended, and the metrics say so."""
        reasons = ("end", "stop", "length", "cancelled", "error")
        ended = sum(self[f'slot_ended_requests_total{{reason="{reason}"}}'] for reason in reasons)
        return self["slot_requests_total"] == ended and self.running == 0

    @property
    def running(self) -> float:
        return self["slot_running_requests"]

    def wait_for_cancelled(self, count: float) -> float:
        """Wait until that many requests were freed by cancellation; how long it took, in seconds."""
        start_s = time.perf_counter()
        wait_until(lambda: self.cancelled >= count)
        return time.perf_counter() - start_s

    def close(self) -> None:
        self._client.close()


class LoopThread:
    """An event loop in a thread of its own; end it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop-under-test", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = DEADLINE_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=timeout_s)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_S)
        self.loop.close()


class TritonUnderTest:
    """A ``Service`` (engine, Triton, client) that runs in a thread of its own; close it."""

    def __init__(self, model: PacedModel, folder: Path, **environment: str) -> None:
        self.model = model
        http, self.grpc_port, metrics = free_ports(3)
        self.http_port = http
        self.environment = triton_environment(http, self.grpc_port, metrics)
        self.environment |= {"ENGINE_DIR": str(model.directory), "HOME": str(folder), **environment}
        self.log: list[str] = []
        self.service = Service(load_settings(self.environment), self.log.append)
        self.url = f"http://{HOST}:{http}"
        self.counters = Counters(metrics)
        self._client = httpx.Client(base_url=self.url, timeout=DEADLINE_S, limits=KEEPS_ALL)
        self._loop = LoopThread()
        self.run = self._loop.run
        try:
            self.run(self.service.open(), _START_DEADLINE_S)
        except BaseException:
            self._loop.end()
            raise

    def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        return self._client.post(path, content=json.dumps(body))

    def stream(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        """All events of a ``generate_stream``."""
        return events(self.post(path, body).text)

    def generate_ids(self, ids: list[int], count: int, **more: object) -> httpx.Response:
        """Ask the slot itself, unstreamed."""
        return self.post(f"{SLOT}/generate", {"input_ids": ids, "request_output_len": count, **more})

    def engine_pid(self) -> int:
        """Return the process of the engine server."""
        (pid,) = engine_pids(self.http_port)
        return pid

    def close(self) -> None:
        self._client.close()
        self.counters.close()
        self.run(self.service.close())
        self._loop.end()


def events(text: str) -> list[dict[str, Any]]:
    """Return the JSON documents of server-sent events."""
    return [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line.startswith("data:")]


def engine_pids(http_port: int) -> list[int]:
    """Engine servers of the runner whose Triton is on this port: they hold its socket open."""
    suffix = f"/cog-triton-{os.getuid()}/{http_port}/engine"
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    inodes = {f"socket:[{fields[6]}]" for fields in sockets if fields[-1].endswith(suffix)}
    return [
        pid
        for pid, command in _commands()
        if "runner.engines.server.main" in command and not inodes.isdisjoint(_open_files(pid))
    ]


def triton_pids(http_port: int) -> list[int]:
    """Triton's server on this port, and its stubs."""
    return [
        pid
        for pid, command in _commands()
        if f"--http-port={http_port}" in command or f"_{http_port}_" in command
    ]


def shared_memory(http_port: int) -> list[str]:
    """Return the shared memory of a Triton on this port."""
    return [path.name for path in Path("/dev/shm").glob(f"cog_triton_*_{http_port}_*")]


def assert_ended(http_port: int) -> None:
    """Check that nothing is left of a runner, and of the Triton on this port."""
    left = [*engine_pids(http_port), *triton_pids(http_port), *shared_memory(http_port)]
    assert left == [], left


def _open_files(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # It has ended, or closed this one.
            found.append(str(path.readlink()))
    return found


def is_running(pid: int) -> bool:
    """Return False once the process has ended, also if nobody has waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def command_of(pid: int) -> str:
    """Return a process's command line; blank once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _commands() -> Iterator[tuple[int, str]]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return ((pid, command_of(pid)) for pid in pids)


class CogUnderTest:
    """The runner's Cog server, started as the command line does, on a tar; close it."""

    def __init__(self, model: PacedModel, folder: Path, *, wait: bool = True, **environment: str) -> None:
        self.model = model
        port, http, grpc, metrics = free_ports(4)
        self.triton_http_port = http
        self.triton_metrics_port = metrics
        self.folder = folder
        """Its TMPDIR."""
        self.metrics_dir = folder / f"cog-triton-{os.getuid()}" / str(http) / "metrics"
        extra = triton_environment(http, grpc, metrics) | {
            "COG_WEIGHTS": str(model.tar),
            "COG_TRITON_CACHE": str(folder / "cache"),
            "TMPDIR": str(folder),
            **environment,
        }
        self.log_path = folder / "cog.log"
        self.server = CogServer("runner", host=HOST, port=port, log_path=self.log_path, extra=extra)
        self.port = port
        self.url = self.server.url
        self.counters = Counters(metrics)
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S, limits=KEEPS_ALL)
        if wait:
            try:
                self.server.wait_ready(_START_DEADLINE_S)
            except BaseException:
                self.close()
                raise

    def predict(self, **inputs: object) -> dict[str, Any]:
        """Return a finished prediction, succeeded or not."""
        response = self.client.post("/predictions", json={"input": inputs})
        assert response.status_code == 200, response.text
        return response.json()

    def status(self) -> str:
        return str(self.server.health().get("status"))

    def log(self) -> str:
        """Its whole lines: the last may still be written."""
        return "".join(self.log_path.read_text(errors="replace").rpartition("\n")[:2])

    def close(self) -> None:
        self.client.close()
        self.counters.close()
        self.server.stop()
