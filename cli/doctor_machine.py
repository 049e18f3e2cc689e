"""The checks of ``cog-triton doctor`` for the machine: driver, GPUs, shared memory, disk."""

import ctypes
import os
import platform
import re
import shutil
from pathlib import Path

from cli.inspect import describe_gpus
from engine.machine.description import machine
from engine.machine.gpu import nvidia_smi, visible_gpus
from engine.machine.preflight import check_image, installed_version, runner_images
from engine.words import in_words
from errors.settings import MissingRequirement
from runner.settings.settings import Settings

_LEAST_SHARED_MEMORY_BYTES = 64 << 20
_LEAST_DISK_BYTES = 1 << 30
_TORCH_CUDA = re.compile(r"\+cu(\d+)\d\b")


def check_machine(settings: Settings) -> str:
    """Describe the machine: Triton's wheel needs its processor and a recent C library."""
    return f"{machine()}, glibc {platform.libc_ver()[1]}"


def check_driver(settings: Settings) -> str:
    """Check that the driver is new enough for the CUDA of the engine environment's torch."""
    device = next(Path("/dev").glob("nvidia[0-9]*"), None)
    version = next((fields[0] for fields in nvidia_smi("driver_version")), None)
    cuda = _cuda_version()
    if cuda is None:
        if device is None and version is None:
            return "none; only GPUs need one"
        remedy = (
            "install NVIDIA's driver; in a container, start it with the NVIDIA container toolkit (--gpus all)"
        )
        raise MissingRequirement(
            what=f"libcuda.so.1, though there is {device or 'nvidia-smi'},", remedy=remedy
        )
    wanted = _TORCH_CUDA.search(installed_version(settings.engine_python)("torch") or "")
    if wanted is not None and int(wanted[1]) > cuda[0]:
        raise MissingRequirement(
            what=f"a driver for CUDA {wanted[1]}, which the engine environment's torch is built for "
            f"(driver {version} is for CUDA {cuda[0]}.{cuda[1]}),",
            remedy="install a newer driver, or a torch for this one",
        )
    return f"{version or 'of unknown version'}, for CUDA up to {cuda[0]}.{cuda[1]}"


def check_gpus(settings: Settings) -> str:
    gpus = visible_gpus()
    if not gpus:
        return "none; transformers and paced engines run on the CPU"
    check_image(settings.image, gpus[:1])
    images = " or ".join(runner_images(gpus[0].sm))
    return f"{describe_gpus(gpus)}; {f'image {images}' if images else 'for which there is no runner image'}"


def check_shared_memory(settings: Settings) -> str:
    shared_memory = shutil.disk_usage("/dev/shm")  # noqa: S108 - where Triton's stubs have their memory
    free_bytes = shared_memory.free
    if free_bytes < _LEAST_SHARED_MEMORY_BYTES:
        remedy = "free some there, or give the container more with `docker run --shm-size 256m`"
        raise MissingRequirement(what=f"64 MiB of /dev/shm ({in_words(free_bytes)} are free)", remedy=remedy)
    return f"{in_words(free_bytes)} of {in_words(shared_memory.total)} are free"


def check_disk(settings: Settings) -> str:
    cache = settings.cache_dir
    there = next(each for each in (cache, *cache.parents) if os.access(each, os.F_OK))
    free_bytes = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK) or free_bytes < _LEAST_DISK_BYTES:
        remedy = "free some, or name another folder with COG_TRITON_CACHE"
        raise MissingRequirement(what=f"1 GiB of writable space at {cache}", remedy=remedy)
    return f"{in_words(free_bytes)} are free at {cache}"


def _cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports; None without a driver."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10
