"""A platform without a device, on which vLLM's servers start with the stand-in executor.

The folder ``vllm_platform`` registers it for a vLLM that has the folder and the checkout in ``PYTHONPATH``.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

_WORKER = "vllm.v1.worker.worker_base.WorkerBase"
_BLOCK_TOKENS = 16
_MEMORY_BYTES = 80 << 30


def _define_missing_operators() -> None:
    """Define the operators that torchvision's Python part is imported with, where its own can't be loaded.

    NOTE: its wheel needs CUDA for them, and where they load, torch takes no second definition.
    """
    folders = getattr(find_spec("torchvision"), "submodule_search_locations", [])
    try:
        for library in chain.from_iterable(Path(folder).glob("_C*.so") for folder in folders):
            torch.ops.load_library(library)
    except OSError:
        for name in ("nms", "qnms"):
            _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
_define_missing_operators()


def register() -> str:
    return f"{__name__}.StandInPlatform"


class StandInPlatform(Platform):  # type: ignore[misc]
    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    ray_device_key = "GPU"
    dispatch_key = "CPU"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "stand-in"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return _MEMORY_BYTES

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = _WORKER
        if vllm_config.cache_config.block_size is None:
            vllm_config.cache_config.block_size = _BLOCK_TOKENS

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is none."""

    def is_sleep_mode_available(self) -> bool:
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """There are none."""
