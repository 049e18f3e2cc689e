"""``vllm serve`` on an engine, as a child on a free port of this machine."""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import urllib3

from perf.peers.engine import Engine
from perf.servers import ENGINE_START_TIMEOUT_S, HOST, MODEL
from perf.session import started
from runner.settings.ports import free_ports

_STOP_GRACE_S = 30.0
_POLL_S = 0.2
_LOG_CHARACTERS = 3000
_VARIABLES = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_HOST_IP": HOST,
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@contextmanager
def vllm_serve(
    engine: Engine, log_path: Path, api_servers: int, variables: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Start it, and stop all that it started. Its URL and process session, once it is ready.

    It logs nothing per request.
    """
    (port,) = free_ports(1)
    flags = [part for name, value in engine.arguments.items() for part in _flag(name, value)]
    command = [shutil.which(engine.python) or engine.python, "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [str(engine.folder), "--served-model-name", MODEL, *flags]
    command += ["--api-server-count", str(api_servers), "--host", HOST, "--port", str(port)]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    names = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton"}
    caches = {name: str(engine.cache / folder) for name, folder in names.items()}
    all_variables = {**_VARIABLES, **caches, **engine.variables, **variables}
    with started(command, all_variables, log_path, _STOP_GRACE_S) as process:
        url, deadline_s = f"http://{HOST}:{port}", time.monotonic() + ENGINE_START_TIMEOUT_S
        while not _is_ready(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                end = log_path.read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise RuntimeError(f"vllm serve did not start: {end}")
            time.sleep(_POLL_S)
        yield url, process.pid


def _is_ready(url: str) -> bool:
    try:
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
