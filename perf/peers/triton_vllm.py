"""Triton with NVIDIA's vLLM backend (triton-inference-server/vllm_backend): its server and its requests.

The backend is a model in Python: vLLM's ``AsyncLLM`` runs inside Triton's Python stub.
"""

import importlib.util
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from errors.requests import InvalidInput
from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.target import Posting
from perf.peers.engine import Engine
from perf.servers import HOST
from perf.vllm_server import ServerProcess, engine_variables
from runner.settings.ports import free_ports
from runner.triton_server.install import install_triton

TRITON_VLLM = "triton-vllm"
"""Its name among the servers."""
GENERATE = "generate"
"""The kind of its requests."""
REPOSITORY = "https://github.com/triton-inference-server/vllm_backend"
_MODEL = "vllm_model"
_CONFIG = 'backend: "vllm"\ninstance_group [{ count: 1 kind: KIND_MODEL }]\n'
_NEED_NUMPY_2 = ("scipy", "sklearn", "pandas", "pyarrow")
"""What vLLM and transformers import only where it is installed."""


class GenerateTarget(Posting):
    """One request to ``generate_stream``: greedy, with as many tokens as the other servers are asked for."""

    def __init__(self, url: str, prompt: str, tokens: int, *, is_streaming: bool = True) -> None:
        parameters = {
            "stream": is_streaming,
            "exclude_input_in_output": True,
            "return_num_output_tokens": True,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        document = {"text_input": prompt, "parameters": parameters}
        super().__init__(url, f"/v2/models/{_MODEL}/generate_stream", document, {})

    def read_ok(self, response: Response) -> Answer:
        answer = Answer(output_tokens=0)
        for event in events(response):
            document = json.loads(event.data)
            if "error" in document:
                return Answer(outcome="failed", error=str(document["error"]))
            answer.output_tokens += document["num_output_tokens"]
            if document["text_output"]:
                answer.output_s.append(event.at_s)
        return answer


def check_backend(folder: Path | None) -> Path:
    """The backend's source. Raises InvalidInput if ``folder`` is no checkout of its repository."""
    if folder is None or not (folder / "src" / "model.py").is_file():
        raise InvalidInput(
            name="vllm-backend", expected=f"a checkout of {REPOSITORY}, for triton-vllm", value=folder
        )
    return folder.absolute() / "src"


def triton_vllm(backend: Path, engine: Engine, folder: Path) -> ServerProcess:
    """tritonserver with the backend's source on the engine, set up in ``folder``."""
    install = install_triton(folder, None)
    linked = install.backend_dir / "vllm"
    linked.unlink(missing_ok=True)
    linked.symlink_to(backend)
    repository = _model_repository(folder / "models", engine)
    http, grpc, metrics = free_ports(3)
    command = [
        str(install.server),
        f"--model-repository={repository}",
        f"--backend-directory={install.backend_dir}",
        *(f"--{api}-address={HOST}" for api in ("http", "grpc", "metrics")),
        f"--http-port={http}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        # As in our own stack, see runner/triton_server/command.py.
        "--http-thread-count=64",
    ]
    environment = install.environment() | engine_variables(engine.cache) | dict(engine.variables)
    # NOTE: the stub takes its Python's prefix from the first `python3` on PATH.
    environment["PATH"] = f"{stub_environment(folder / 'environment', engine.python)}:{environment['PATH']}"
    # As `vllm serve` starts its core.
    environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    return ServerProcess(
        command, environment, f"http://{HOST}:{http}", "/v2/health/ready", folder / "triton-vllm.log"
    )


def _model_repository(folder: Path, engine: Engine) -> Path:
    version = folder / _MODEL / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    arguments = {**engine.arguments, "model": str(engine.folder), "disable_log_stats": True}
    (version / "model.json").write_text(json.dumps(arguments))
    return folder


def stub_environment(folder: Path, engine_python: str) -> Path:
    """Create a Python with the engine's modules, but our numpy; its folder of programs. Raises InvalidInput.

    NOTE: Triton's stub ignores PYTHONPATH and can't use numpy 2, which vLLM's environment has.
    """
    code = "import json, sys; print(json.dumps([sys.version_info[:2], sys.path[1:]]))"
    told = subprocess.run([engine_python, "-c", code], check=True, capture_output=True, text=True)
    version, path = json.loads(told.stdout)
    if tuple(version) != sys.version_info[:2]:
        expected = f"of the version of this one, {sys.version_info[0]}.{sys.version_info[1]}, for triton-vllm"
        raise InvalidInput(name="engine-python", expected=expected, value=engine_python)
    venv.create(folder, symlinks=True, clear=True)
    packages = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(folder)}))
    numpy = importlib.util.find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    for each in Path(numpy.origin).parents[1].glob("numpy*"):
        (packages / each.name).symlink_to(each)
    without = f"import sys; sys.modules.update(dict.fromkeys({_NEED_NUMPY_2}))"
    (packages / "engine.pth").write_text("\n".join([without, *path]))
    return folder / "bin"
