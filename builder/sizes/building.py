"""What building takes of the machine that does it: memory, GPU memory, disk. Estimates on the safe side.

convert     memory: the model as downloaded and one converted rank for each worker; its GPU memory is the
            model's where it calibrates
quantize    the whole model on the GPU while it calibrates; model and result in memory
build       memory: two and a half times the largest rank for each worker and 4 GiB of TensorRT's; GPU
            memory: the rank's weights, its activations and CUDA's own
disk        the download, the checkpoint, the engine, and the engine once more in the tar
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.sizes.gpus import GIB

_BUILD_COPIES = 2.5
_TENSORRT_BYTES = 4 * GIB
_CALIBRATION_FACTOR = 1.15


@dataclass(frozen=True)
class StepNeeds:
    """What one program takes at its peak; ``gpu_bytes`` 0 if it needs no GPU."""

    ram_bytes: int
    gpu_bytes: int


def convert_needs(source_bytes: int, rank_bytes: int, *, workers: int, calibrates: bool) -> StepNeeds:
    gpu_bytes = int(source_bytes * _CALIBRATION_FACTOR) if calibrates else 0
    return StepNeeds(source_bytes + rank_bytes * workers, gpu_bytes)


def quantize_needs(source_bytes: int, checkpoint_bytes: int, *, on_gpu: bool) -> StepNeeds:
    return StepNeeds(
        source_bytes + checkpoint_bytes, int(source_bytes * _CALIBRATION_FACTOR) if on_gpu else 0
    )


def build_needs(rank_bytes: int, rank_gpu_bytes: int, *, workers: int) -> StepNeeds:
    return StepNeeds(int(rank_bytes * _BUILD_COPIES) * workers + _TENSORRT_BYTES, rank_gpu_bytes)


def disk_bytes(download_bytes: int, checkpoint_bytes: int, engine_bytes: int) -> int:
    return download_bytes + checkpoint_bytes + 2 * engine_bytes


def ram_here_bytes() -> int | None:
    """This machine's memory, or what its container may take of it; None if it can't be told."""
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
