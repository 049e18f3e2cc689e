"""Building takes the same memory whatever the engine's size: the real Cog server and worker, measured."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import yaml

from tests.builder import tiny_model
from tests.builder.cog_server import CogServer

pytestmark = pytest.mark.servers

SIZE_MIB = int(os.environ.get("BUILDER_MEMORY_TEST_MIB", "1024"))
ALLOWED_GROWTH_MIB = 64


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def sparse_safetensors(path: Path, size_mib: int) -> None:
    """One tensor of zeros that takes no room on the disk."""
    size_bytes = size_mib << 20
    header = {"zeros": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size_bytes)


@pytest.mark.slow
def test_the_peak_of_server_and_worker_does_not_grow_with_the_engine(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes(tiny_model.files()[name])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_path": "model"}))
    server = CogServer(tmp_path, {})
    peaks = []
    try:
        for size_mib in (65, SIZE_MIB):
            sparse_safetensors(model / "model.safetensors", size_mib)
            assert server.build(config="config.yaml")["output"] == (tmp_path / "engine.tar").as_uri()
            assert (tmp_path / "engine.tar").stat().st_size > size_mib << 20
            peaks.append(peak_mib(server.pid) + peak_mib(server.worker_pid()))
    finally:
        server.close()
    (tmp_path / "engine.tar").unlink()
    print(f"peak with 65 MiB: {peaks[0]:.0f} MiB, with {SIZE_MIB} MiB: {peaks[1]:.0f} MiB")
    assert peaks[1] - peaks[0] < ALLOWED_GROWTH_MIB
