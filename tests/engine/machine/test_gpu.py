"""The GPUs of a machine. nvidia-smi is stood in for by a script: machines for tests have no GPU."""

from pathlib import Path

import pytest

from engine.machine.gpu import Gpu, detected_sm, visible_gpus
from tests.standins.gpus import without_driver

pytestmark = without_driver

A40 = "GPU-1, 8.6, NVIDIA A40, 46068, 45000"
H100 = "GPU-2, 9.0, NVIDIA H100 80GB HBM3, 81559, 81000"


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("answer", "sm"),
    [
        (f"echo {H100}", 90),
        (f"echo {A40}; echo {H100}", 86),
        ("echo GPU-3, 12.0, RTX PRO, 1, 1", 120),
        ("echo No devices were found; exit 6", None),
        ("echo No devices were found", None),
        ("exit 9", None),
    ],
)
def test_nvidia_smi_is_asked_where_there_is_no_driver_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, sm: int | None
) -> None:
    nvidia_smi(tmp_path, monkeypatch, answer)
    assert detected_sm() == sm


def test_each_gpu_has_its_name_and_memory_where_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, f"echo {A40}; echo 'GPU-4, 9.0, NVIDIA GH200, [N/A], [N/A]'")
    mib = 1 << 20
    assert visible_gpus() == (
        Gpu(86, "NVIDIA A40", 46068 * mib, 45000 * mib),
        Gpu(90, "NVIDIA GH200", None, None),
    )
    (tmp_path / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (detected_sm(), visible_gpus()) == (None, ())
