"""``vllm serve`` on an engine folder, as a child on a free port of this machine."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from engine.machine.processes import session_members
from perf.resources import answers_ok
from perf.servers import HOST, MODEL
from runner.settings.ports import free_ports
from runner.supervision.child import with_parent

_STOP_GRACE_S = 30.0
_POLL_S = 0.2
_LOG_CHARACTERS = 3000


class VllmServer(AbstractContextManager["VllmServer"]):
    """Starts at once; logs nothing per request. ``arguments`` are those of vLLM's engine."""

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
        self.url = f"http://{HOST}:{port}"
        self._log_path = log_path
        flags = [part for name, value in arguments.items() for part in _flag(name, value)]
        python = shutil.which(python) or python
        command = [*with_parent(os.getpid()), python, "-m", "vllm.entrypoints.cli.main", "serve"]
        command += [str(engine_dir), "--served-model-name", MODEL, *flags]
        command += ["--api-server-count", str(api_servers), "--host", HOST, "--port", str(port)]
        command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
        environment = {
            **os.environ,
            "VLLM_CACHE_ROOT": str(cache / "vllm"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_HOST_IP": HOST,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **(variables or {}),
        }
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
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
        while not answers_ok(f"{self.url}/health"):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                log = self._log_path.read_text(errors="replace")
                raise RuntimeError(f"vLLM's server did not start: {log[-_LOG_CHARACTERS:]}")
            time.sleep(_POLL_S)

    def __exit__(self, *exc_info: object) -> None:
        """SIGTERM, a grace period, SIGKILL for all that it started."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_GRACE_S)
        for pid in session_members(self.session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
