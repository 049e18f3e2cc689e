"""The memory of the usual GPUs of an architecture, and of this machine's GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.machine.gpu import visible_gpus

GIB = 1 << 30

_KNOWN: Mapping[int, Mapping[str, int]] = {
    80: {"A30": 24, "A100 40GB": 40, "A100 80GB": 80},
    86: {"RTX 30xx, A10": 24, "A40, RTX A6000": 48},
    89: {"L4, RTX 40xx": 24, "L40S": 48},
    90: {"H100": 80, "GH200": 96, "H200": 141},
}
"""By SM and name, in GiB as sold: smallest first."""


@dataclass(frozen=True)
class GpuModel:
    name: str
    memory_bytes: int


def gpus_of(sm: int) -> list[GpuModel]:
    """The usual GPUs of architecture ``sm``, smallest memory first; empty for an unknown one."""
    return [GpuModel(name, size_gib * GIB) for name, size_gib in _KNOWN.get(sm, {}).items()]


def gpus_here() -> list[GpuModel]:
    """The visible GPUs whose memory is known."""
    return [
        GpuModel(gpu.name or "GPU", gpu.total_bytes) for gpu in visible_gpus() if gpu.total_bytes is not None
    ]
