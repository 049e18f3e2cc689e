"""Which GPU architecture is here, and whether an engine runs on it. SM 86 is compute capability 8.6."""

from __future__ import annotations

import ctypes
import re
import subprocess

from engine.manifest import EngineFacts, EngineKind
from errors.engine_artifact import GpuRequired, WrongGpuArchitecture

RUNNER_IMAGE_SMS = {80: "A100", 86: "A40, A10, RTX 30xx", 90: "H100, H200"}
"""The architectures that a ``cog-triton-runner-<SM>`` image exists for."""

_NEEDS_GPU: tuple[EngineKind, ...] = ("tensorrt_llm", "vllm")
_COMPILED_FOR_ONE_SM: tuple[EngineKind, ...] = ("tensorrt_llm",)
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the CUDA driver API."""


def detected_sm() -> int | None:
    """The SM of the first visible GPU; None without one.

    The driver library is asked first: it heeds CUDA_VISIBLE_DEVICES, which nvidia-smi does not.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _sm_from_nvidia_smi()
    return _sm_from_driver(driver)


def check_runs_here(manifest: EngineFacts, sm: int | None) -> None:
    """Raise GpuRequired or WrongGpuArchitecture if the engine can't run on a machine with GPU ``sm``."""
    if manifest.engine_kind in _NEEDS_GPU and sm is None:
        raise GpuRequired(engine_kind=manifest.engine_kind)
    if manifest.engine_kind in _COMPILED_FOR_ONE_SM and manifest.sm not in (None, sm):
        raise WrongGpuArchitecture(built_for=manifest.sm, present=sm, remedy=_where_it_runs(manifest.sm))


def _where_it_runs(sm: int | None) -> str:
    if sm in RUNNER_IMAGE_SMS:
        return f"run it with the cog-triton-runner-{sm} image on an SM {sm} GPU ({RUNNER_IMAGE_SMS[sm]})"
    return f"run it on an SM {sm} GPU"


def _sm_from_driver(driver: ctypes.CDLL) -> int | None:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _ATTRIBUTE_MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _ATTRIBUTE_MINOR, device)
    )
    return None if failed else major.value * 10 + minor.value


def _sm_from_nvidia_smi() -> int | None:
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"\s*(\d+)\.(\d)\b", answer)
    return int(match[1]) * 10 + int(match[2]) if match else None
