"""Which engines run where. nvidia-smi is stood in for by a script: machines for tests have no GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from engine.gpu import check_runs_here, detected_sm
from engine.manifest import EngineFacts
from errors.engine_artifact import GpuRequired, WrongGpuArchitecture


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(_has_driver(), reason="this machine has an NVIDIA driver")


def test_an_engine_for_another_architecture_is_refused_with_the_way_out() -> None:
    with pytest.raises(WrongGpuArchitecture, match="built for SM 86, this GPU is SM 90") as caught:
        check_runs_here(EngineFacts(engine_kind="tensorrt_llm", sm=86), 90)
    assert "cog-triton-runner-86 image" in str(caught.value)
    assert "A10" in str(caught.value)
    with pytest.raises(WrongGpuArchitecture, match="run it on an SM 75 GPU, or rebuild"):
        check_runs_here(EngineFacts(engine_kind="tensorrt_llm", sm=75), 90)


def test_an_engine_that_needs_a_gpu_is_refused_without_one() -> None:
    for facts in (EngineFacts(engine_kind="tensorrt_llm", sm=86), EngineFacts(engine_kind="vllm")):
        with pytest.raises(GpuRequired, match=facts.engine_kind):
            check_runs_here(facts, None)


@pytest.mark.parametrize(
    ("facts", "sm"),
    [
        (EngineFacts(engine_kind="tensorrt_llm", sm=90), 90),
        (EngineFacts(engine_kind="tensorrt_llm"), 90),
        (EngineFacts(engine_kind="vllm", sm=86), 90),
        (EngineFacts(engine_kind="transformers"), None),
        (EngineFacts(engine_kind="paced", sm=86), None),
    ],
)
def test_every_other_engine_runs(facts: EngineFacts, sm: int | None) -> None:
    check_runs_here(facts, sm)


@without_driver
@pytest.mark.parametrize(
    ("answer", "sm"),
    [
        ("echo 9.0", 90),
        ("echo 8.6; echo 9.0", 86),
        ("echo 12.0", 120),
        ("echo No devices were found; exit 6", None),
    ],
)
def test_nvidia_smi_is_asked_where_there_is_no_driver_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, sm: int | None
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert detected_sm() == sm


@without_driver
def test_a_machine_without_a_gpu_has_no_sm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detected_sm() is None
