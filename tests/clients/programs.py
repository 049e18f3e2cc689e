"""Load generators of others, run as programs of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

_BIN = Path(sys.executable).parent
_LIBRARIES = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_runtime" / "lib"


def run_program(folder: Path, name: str, *arguments: str, timeout_s: float = 500.0) -> str:
    """Run it to its end, which must be a success; what it printed. Files it makes are in ``folder``."""
    done = subprocess.run(
        [_BIN / name, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
            # perf_analyzer, which genai-perf runs, looks for CUDA's runtime, though it needs no GPU.
            "LD_LIBRARY_PATH": str(_LIBRARIES),
            # aiperf gives its processes 30 s to start, which a machine that is busy may not keep.
            "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "240",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
