"""The memory, GPU memory and disk space that a build needs: high estimates.

convert     memory: the model as downloaded and a converted rank per worker; GPU memory: the model if it
            calibrates, else none
quantize    memory: the model and the result; GPU memory: the model while it calibrates
build       memory: two and a half times the largest rank per worker, and 4 GiB for TensorRT; GPU memory: the
            rank's weights, its activations and CUDA's own
disk        the download, the checkpoint, the engine, and the engine again in the tar
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.sizes.gpus import GIB

BUILD_COPIES = 2.5
TENSORRT_BYTES = 4 * GIB
CALIBRATION_FACTOR = 1.15


@dataclass(frozen=True)
class StepNeeds:
    """Peak memory of one program; ``gpu_bytes`` is 0 if it needs no GPU."""

    ram_bytes: int
    gpu_bytes: int


def ram_here_bytes() -> int | None:
    """This machine's memory, or its container's limit; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    except (OSError, StopIteration):
        return None
    limits = [
        _limit(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory/memory.limit_in_bytes")
    ]
    return min([total, *(limit for limit in limits if limit is not None)])


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
