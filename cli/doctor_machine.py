"""The checks of ``cog-triton doctor`` for the machine: processor, C library, NVIDIA's driver, GPUs."""

import ctypes
import platform
import re
from pathlib import Path

from cli.inspect import describe_gpus
from engine.machine.description import machine
from engine.machine.gpu import nvidia_smi, visible_gpus
from engine.machine.preflight import RUNNER_IMAGE_SMS, installed_version
from errors.settings import MissingRequirement
from runner.settings.settings import Settings

_TORCH_CUDA = re.compile(r"\+cu(\d+)\d\b")


def check_machine(settings: Settings) -> str:
    """The wheel with Triton does not install on another processor or an older C library."""
    return f"{machine()}, glibc {platform.libc_ver()[1]}"


def check_driver(settings: Settings) -> str:
    """A torch for a newer CUDA than the driver's can't use the GPU."""
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
    sm = gpus[0].sm
    image = (
        f"image cog-triton-runner-{sm}" if sm in RUNNER_IMAGE_SMS else "for which there is no runner image"
    )
    return f"{describe_gpus(gpus)}; {image}"


def _cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports; None without a driver."""
    version = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10
