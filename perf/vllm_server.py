"""Servers with vLLM's engine, each a child on a free port of this machine; ``vllm serve``."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import urllib3

from engine.machine.processes import session_members
from perf.servers import HOST, MODEL
from runner.settings.ports import free_ports
from runner.supervision.child import with_parent

_STOP_GRACE_S = 30.0
_POLL_S = 0.2
_LOG_CHARACTERS = 3000


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """A server as a child, in a session of its own. Starts at once."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        url: str,
        ready_path: str,
        log_path: Path,
    ) -> None:
        self.url = url
        self._ready_url = url + ready_path
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*with_parent(os.getpid()), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        """The process session that all its processes are in."""
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Raises RuntimeError with the end of its log."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                log = self._log_path.read_text(errors="replace")
                raise RuntimeError(f"The server with vLLM did not start: {log[-_LOG_CHARACTERS:]}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        # NOTE: a Triton that stops waits for connections that are open.
        headers = {"Connection": "close"}
        try:
            response = urllib3.request("GET", self._ready_url, headers=headers, timeout=2, retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return response.status == 200

    def __exit__(self, *exc_info: object) -> None:
        """SIGTERM, a grace period, SIGKILL for all that it started."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_GRACE_S)
        for pid in session_members(self.session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class VllmServer(ServerProcess):
    """Logs nothing per request. ``arguments`` are those of vLLM's engine."""

    def __init__(
        self,
        python: str,
        engine_dir: Path,
        arguments: Mapping[str, object],
        log_path: Path,
        cache: Path,
        *,
        api_servers: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        (port,) = free_ports(1)
        flags = [part for name, value in arguments.items() for part in _flag(name, value)]
        command = [shutil.which(python) or python, "-m", "vllm.entrypoints.cli.main", "serve"]
        command += [str(engine_dir), "--served-model-name", MODEL, *flags]
        command += ["--api-server-count", str(api_servers), "--host", HOST, "--port", str(port)]
        command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
        environment = {**os.environ, **engine_variables(cache), **(variables or {})}
        super().__init__(command, environment, f"http://{HOST}:{port}", "/health", log_path)


def engine_variables(cache: Path) -> dict[str, str]:
    """What vLLM's engine needs in its environment, whichever server it is in."""
    return {
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": HOST,
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
