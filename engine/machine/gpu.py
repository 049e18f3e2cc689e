"""The GPUs of this machine. SM 86 is compute capability 8.6."""

import ctypes
import subprocess
import uuid
from dataclasses import dataclass, replace

_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the CUDA driver API."""
_QUERY = "uuid,compute_cap,name,memory.total,memory.free"
_MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One visible GPU. Unknown values are None; sizes are in bytes."""

    sm: int
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that a process started here sees, in CUDA's order.

    The driver library lists them: it respects CUDA_VISIBLE_DEVICES, which nvidia-smi does not. Free memory
    comes from nvidia-smi, because the driver needs a CUDA context, which takes memory, to report it.
    """
    told = _told_by_nvidia_smi()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return tuple(told.values())
    gpus = _told_by_driver(driver)
    return tuple(replace(told[key], sm=sm) if key in told else Gpu(sm) for key, sm in gpus)


def detected_sm() -> int | None:
    gpus = visible_gpus()
    return gpus[0].sm if gpus else None


def _told_by_driver(driver: ctypes.CDLL) -> list[tuple[str, int]]:
    """Return UUID and SM of each visible GPU."""
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    gpus = []
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        identity = (ctypes.c_ubyte * 16)()
        failed = (
            driver.cuDeviceGet(ctypes.byref(device), ordinal)
            or driver.cuDeviceGetAttribute(ctypes.byref(major), _ATTRIBUTE_MAJOR, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), _ATTRIBUTE_MINOR, device)
            or driver.cuDeviceGetUuid(ctypes.byref(identity), device)
        )
        if not failed:
            gpus.append((f"GPU-{uuid.UUID(bytes=bytes(identity))}", major.value * 10 + minor.value))
    return gpus


def nvidia_smi(query: str) -> list[list[str]]:
    """Return the fields that ``query`` names, for each GPU; empty without nvidia-smi or a GPU."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in answer.strip().splitlines()]


def _told_by_nvidia_smi() -> dict[str, Gpu]:
    """Return GPUs by UUID."""
    gpus = {}
    for fields in nvidia_smi(_QUERY):
        if len(fields) == len(_QUERY.split(",")) and (sm := _sm(fields[1])) is not None:
            gpus[fields[0]] = Gpu(sm, fields[2], _mib(fields[3]), _mib(fields[4]))
    return gpus


def _sm(text: str) -> int | None:
    major, dot, minor = text.partition(".")
    return int(major) * 10 + int(minor) if dot and major.isdecimal() and minor.isdecimal() else None


def _mib(text: str) -> int | None:
    """Return bytes, or None: nvidia-smi writes [N/A] where a GPU has no such figure."""
    return int(text) * _MIB if text.isdecimal() else None
