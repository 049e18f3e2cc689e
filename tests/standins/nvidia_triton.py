"""A Triton as somebody else runs it: no front before it, and NVIDIA's backend stood in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx

from runner.settings.ports import LOOPBACK, free_ports
from runner.supervision.child import with_parent
from runner.triton_server.install import install_triton

MODEL = "tensorrt_llm"
_PROGRAM = Path(__file__).with_name("nvidia_backend") / "model.py"
_INPUTS = {
    "input_ids": ("TYPE_INT32", -1),
    "input_lengths": ("TYPE_INT32", 1),
    "request_output_len": ("TYPE_INT32", 1),
    "end_id": ("TYPE_INT32", 1),
    "pad_id": ("TYPE_INT32", 1),
    "temperature": ("TYPE_FP32", 1),
    "runtime_top_k": ("TYPE_INT32", 1),
    "random_seed": ("TYPE_UINT64", 1),
    "exclude_input_in_output": ("TYPE_BOOL", 1),
    "streaming": ("TYPE_BOOL", 1),
}


def config(record: Path, name: str = MODEL, *, is_decoupled: bool = True, **types: str | None) -> str:
    """Return the config.pbtxt of a model. ``types``: of inputs that differ; None: the input is not there."""
    inputs = {each: (types.get(each, datatype), dim) for each, (datatype, dim) in _INPUTS.items()}
    lines = [
        f'name: "{name}" backend: "python" max_batch_size: 8',
        f"model_transaction_policy {{ decoupled: {str(is_decoupled).lower()} }}",
        *(
            f'input {{ name: "{each}" data_type: {datatype} dims: [ {dim} ] optional: true'
            + (" reshape: { shape: [ ] } }" if dim == 1 else " allow_ragged_batch: true }")
            for each, (datatype, dim) in inputs.items()
            if datatype is not None
        ),
        'output { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }',
        'output { name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }',
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        f'parameters {{ key: "record" value: {{ string_value: "{record}" }} }}',
    ]
    return "\n".join(lines)


class NvidiaTriton:
    """Add models; then ``start`` and ``kill``, as often as needed."""

    def __init__(self, folder: Path, repository: Path | None = None) -> None:
        self.folder = folder
        self.repository = repository or folder / "models"
        self.http_port, self.port, self.metrics_port = free_ports(3)
        self._install = install_triton(folder, None)
        self._process: subprocess.Popen[bytes] | None = None

    def add_model(self, name: str = MODEL, **options: Any) -> None:
        """See ``config``."""
        model = self.repository / name
        (model / "1").mkdir(parents=True, exist_ok=True)
        (model / "1" / "model.py").write_bytes(_PROGRAM.read_bytes())
        (model / "config.pbtxt").write_text(config(self.folder / f"{name}.json", name, **options))

    def start(self) -> None:
        command = [
            *with_parent(os.getpid()),
            str(self._install.server),
            f"--model-repository={self.repository}",
            f"--backend-directory={self._install.backend_dir}",
            f"--backend-config=python,shm-region-prefix-name=nvidia_{os.getpid()}_{self.port}_",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.port}",
            f"--metrics-port={self.metrics_port}",
            "--disable-auto-complete-config",
            "--exit-timeout-secs=1",
        ]
        with (self.folder / "triton.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._install.environment(), stdout=log, stderr=subprocess.STDOUT
            )

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{LOOPBACK}:{self.http_port}/v2/health/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def counts(self) -> tuple[int, int]:
        """Return how many requests run, and how many were cancelled."""
        document = json.loads((self.folder / f"{MODEL}.json").read_text())
        return document["running"], document["cancelled"]

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in Path("/dev/shm").glob(f"nvidia_{os.getpid()}_{self.port}_*"):
            region.unlink(missing_ok=True)
