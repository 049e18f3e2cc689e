"""An engine environment for tests: this Python with the stand-in ``tensorrt_llm`` and its executables.

TensorRT-LLM can't be installed where these tests run; the stand-ins keep to its published interface.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from tests.runner.tensorrt_llm_engine import write_engine_python

_TRTLLM_BUILD = """#!/bin/sh
exec "$(dirname "$0")/python" -m tensorrt_llm.commands.build "$@"
"""
_NVIDIA_SMI = """#!/bin/sh
case "$*" in
*uuid,compute_cap,name,memory.total,memory.free*)
    {each} echo "GPU-$each, {sm_major}.{sm_minor}, {name}, {memory_mib}, {memory_mib}"; done ;;
-L) {each} echo "GPU: {name}"; done ;;
*) exit 1 ;;
esac
"""


def make_engine_environment(folder: Path) -> Path:
    """An environment in ``folder``; its Python, beside which ``trtllm-build`` lies."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "trtllm-build", _TRTLLM_BUILD)
    return write_engine_python(programs)


def make_gpus(folder: Path, *, sm: int = 86, count: int = 1, memory_mib: int = 24576) -> None:
    """An ``nvidia-smi`` in ``folder`` that tells of ``count`` GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _NVIDIA_SMI.format(
        each=f"for each in $(seq {count}); do",
        sm_major=sm // 10,
        sm_minor=sm % 10,
        name="Stand-in A10",
        memory_mib=memory_mib,
    )
    write_program(folder / "nvidia-smi", text)


def has_driver() -> bool:
    """Whether CUDA's driver library is here, which tells of GPUs before nvidia-smi does."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
