"""``vllm serve`` on an engine, as a child on a free port of this machine."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perf.peers.engine import Engine
from perf.servers import ENGINE_START_TIMEOUT_S, HOST, MODEL
from perf.session import serving
from runner.settings.ports import free_ports

_VARIABLES = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_HOST_IP": HOST}
_VARIABLES |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def vllm_serve(
    engine: Engine, log_path: Path, api_servers: int, variables: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Start it, without request logs, and stop it. Yield its URL and process session once it is ready."""
    (port,) = free_ports(1)
    flags = [part for name, value in engine.arguments.items() for part in _flag(name, value)]
    command = [shutil.which(engine.python) or engine.python, "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [str(engine.folder), "--served-model-name", MODEL, *flags]
    command += ["--api-server-count", str(api_servers), "--host", HOST, "--port", str(port)]
    command += ["--disable-log-stats", "--disable-uvicorn-access-log"]
    names = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton"}
    caches = {name: str(engine.cache / folder) for name, folder in names.items()}
    all_variables = {**_VARIABLES, **caches, **engine.variables, **variables}
    url = f"http://{HOST}:{port}"
    with serving(command, all_variables, log_path, f"{url}/health", ENGINE_START_TIMEOUT_S) as session:
        yield url, session


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
