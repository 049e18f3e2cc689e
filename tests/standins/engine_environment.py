"""An engine environment for tests: this Python with the stand-in ``tensorrt_llm`` and its executables.

TensorRT-LLM can't be installed where these tests run; the stand-ins keep to its published interface.
"""

from __future__ import annotations

from pathlib import Path

from tests.runner.tensorrt_llm_engine import write_engine_python

_TRTLLM_BUILD = """#!/bin/sh
exec "$(dirname "$0")/python" -m tensorrt_llm.commands.build "$@"
"""


def make_engine_environment(folder: Path) -> Path:
    """Return an environment in ``folder``; its Python, beside which ``trtllm-build`` lies."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    trtllm_build = programs / "trtllm-build"
    trtllm_build.write_text(_TRTLLM_BUILD)
    trtllm_build.chmod(0o755)
    return write_engine_python(programs)
