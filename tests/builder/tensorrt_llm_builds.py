"""Configs and builds of TensorRT-LLM engines on a stand-in of the machine that they need."""

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from engine.inspect import verify
from engine.tar.manifest import Manifest
from tests.builder.conftest import MODEL_ID
from tests.standins.engine_environment import make_engine_environment
from tests.standins.gpus import make_gpus

CONVERT: dict[str, Any] = {
    "executable": "python",
    "script": "convert_checkpoint.py",
    "output_dir": "./checkpoint",
    "args": {"dtype": "float16"},
}
BUILD: dict[str, Any] = {
    "executable": "trtllm-build",
    "output_dir": "./engine_outputs",
    "args": {"checkpoint_dir": "./checkpoint", "max_batch_size": 4, "gemm_plugin": "auto"},
}


Args = dict[str, Any]


def config(
    convert: dict[str, Any] | None = None, build: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """Return a config with more arguments for the two programs, and other keys."""
    first, second = {**CONVERT["args"], **(convert or {})}, {**BUILD["args"], **(build or {})}
    steps = {"convert_to_ft": {**CONVERT, "args": first}, "build": {**BUILD, "args": second}}
    return {"version": 1, "model_id": MODEL_ID, "example_name": "llama", **steps, **keys}


def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine with one A10 and the stand-in engine environment."""
    python = make_engine_environment(tmp_path / "engine-environment")
    make_gpus(tmp_path / "gpu")
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", str(python))
    monkeypatch.setenv("PATH", f"{tmp_path / 'gpu'}{os.pathsep}{os.environ['PATH']}")
    for name in ("TRTLLM_DIR", "STANDIN_BUILD", "COG_TRITON_BUILD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(folder: Path, keys: dict[str, Any]) -> tuple[Manifest, dict[str, bytes], list[str]]:
    """Build from ``keys``: the manifest, the tar's content, the lines that were reported."""
    lines: list[str] = []
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))
    manifest = build(folder / "config.yaml", folder / "engine.tar", report=lines.append)
    assert verify(folder / "engine.tar") == manifest
    with tarfile.open(folder / "engine.tar") as tar:
        content = {name: file.read() for name in tar.getnames() if (file := tar.extractfile(name))}
    return manifest, content, lines


def steps_of(lines: list[str], step: str) -> list[str]:
    """Return what the program of ``step`` printed."""
    return [line.partition("| ")[2] for line in lines if line.startswith(f"{step} ") and "| " in line]
