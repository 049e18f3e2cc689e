"""Building TensorRT-LLM engines, with stand-ins for the library and trtllm-build (it can't be installed here).

The stand-ins check every argument against the flag data and write checkpoints and engines of the real layout.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from engine.manifest import Manifest
from engine.verify import verify
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import Repository
from tests.standins.engine_environment import make_engine_environment, make_gpus

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


def config(
    convert: dict[str, Any] | None = None, build: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """A config with more arguments for the two programs, and other keys."""
    first, second = {**CONVERT["args"], **(convert or {})}, {**BUILD["args"], **(build or {})}
    steps = {"convert_to_ft": {**CONVERT, "args": first}, "build": {**BUILD, "args": second}}
    return {"version": 1, "model_id": MODEL_ID, "example_name": "llama", **steps, **keys}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> Path:
    """A machine with one A10 and the stand-in engine environment; the model is large enough to be plausible."""
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


def test_a_config_becomes_a_flat_engine_tar_with_its_facts(machine: Path, repository: Repository) -> None:
    manifest, content, lines = run(machine, config())
    print("\n".join(lines))
    assert set(manifest.files) == {
        "config.json",
        "rank0.engine",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    assert manifest.library is not None
    assert (manifest.engine_kind, manifest.library.name, manifest.library.version) == (
        "tensorrt_llm", "tensorrt_llm", "0.16.0",
    )  # fmt: skip
    assert (manifest.sm, manifest.world_size, manifest.dtype, manifest.quantization) == (
        86,
        1,
        "float16",
        None,
    )
    assert (manifest.max_batch_size, manifest.max_seq_len, manifest.revision) == (4, 64, repository.commit)
    assert json.loads(content["config.json"])["build_config"]["plugin_config"]["gemm_plugin"] == "auto"
    assert manifest.build_config["build"] == config()["build"]
