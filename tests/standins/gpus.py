"""GPUs for tests, which run where there are none: an ``nvidia-smi`` that tells of some."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

_NVIDIA_SMI = """#!/bin/sh
case "$*" in
*uuid,compute_cap,name,memory.total,memory.free*)
    {each} echo "GPU-$each, {sm_major}.{sm_minor}, {name}, {memory_mib}, {free_mib}"; done ;;
-L) {each} echo "GPU: {name}"; done ;;
*) exit 1 ;;
esac
"""


def make_gpus(
    folder: Path,
    *,
    sm: int = 86,
    count: int = 1,
    name: str = "Stand-in A10",
    memory_mib: int = 24576,
    free_mib: int | None = None,
) -> None:
    """Make an ``nvidia-smi`` in ``folder`` that lists ``count`` GPUs, with free memory by default."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _NVIDIA_SMI.format(
        each=f"for each in $(seq {count}); do",
        sm_major=sm // 10,
        sm_minor=sm % 10,
        name=name,
        memory_mib=memory_mib,
        free_mib=memory_mib if free_mib is None else free_mib,
    )
    program = folder / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)


def has_driver() -> bool:
    """Return whether CUDA's driver library is here, which tells of GPUs before nvidia-smi does."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(
    has_driver(), reason="a real driver tells of other GPUs than the stand-in"
)
