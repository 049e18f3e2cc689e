"""The measurement on a wheel made by hand, which lies in the cache already."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.nix.slim.elf_maker import ELF, Image, container, library

ROOT = Path(__file__).resolve().parents[2]


def test_tells_sizes_before_and_after_for_each_wheel_and_library(tmp_path: Path) -> None:
    code = {sm: os.urandom(1 << 20) for sm in (80, 90)}  # does not compress
    fat = library(container(*(Image(ELF, sm, payload=payload) for sm, payload in code.items())))
    folder = tmp_path / "fat==1.0"
    folder.mkdir()
    with zipfile.ZipFile(folder / "fat-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("fat/libfat.so", fat)
        wheel.writestr("fat/host.bin", os.urandom(1 << 20))
    command = [
        sys.executable,
        "-m",
        "perf",
        "slimming",
        "fat==1.0",
        "--cache",
        str(tmp_path),
        "--sm",
        "80",
        "90",
    ]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in output.splitlines() if line}
    assert [float(cell.strip("| ")) for cell in rows["libfat.so"]] == [2.1, 2.1, 1.1, 1.1, 50, 50]
    assert [float(cell.strip("| ")) for cell in rows["fat==1.0"]] == [3.1, 3.1, 2.1, 2.1, 67, 67]
    assert [path.name for path in tmp_path.iterdir()] == ["fat==1.0"]
