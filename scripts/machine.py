"""Requirements that this machine must meet before anything can be installed. Standard library only."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from engine.machine.libpython import libpython_dir
from errors.settings import MissingRequirement

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The command of the running Python, outside of any virtual environment."""
PYTHON_VERSION = "{}.{}".format(*sys.version_info)
OLDEST_GLIBC = (2, 35)  # the wheel of nvidia-pytriton, which brings Triton, is a manylinux_2_35 one


def missing() -> list[MissingRequirement]:
    """Return the requirements that the system and the running Python do not meet."""
    system, machine = platform.system(), platform.machine()
    library, version = platform.libc_ver()
    glibc = tuple(map(int, re.findall(r"\d+", version)[:2])) if library == "glibc" else ()
    found = []
    if (system, machine) != ("Linux", "x86_64"):
        remedy = f"this is {system} on {machine}, for which there is no Triton to install"
        found.append(MissingRequirement(what="Linux on x86_64", remedy=remedy))
    elif glibc < OLDEST_GLIBC:
        present = version if glibc else "another C library"
        remedy = f"this system has {present}: use Debian 12, Ubuntu 22.04, Fedora 36 or newer"
        found.append(MissingRequirement(what="glibc {}.{} or newer".format(*OLDEST_GLIBC), remedy=remedy))
    found += [_missing(name, name, name) for name in ("git", "make") if not shutil.which(name)]
    if libpython_dir(PYTHON_VERSION) is None:
        name = f"python{PYTHON_VERSION}"
        found.append(_missing(f"lib{name}.so.1.0 of {PYTHON}", f"lib{name}", name))
    return found


def has_nvidia_gpu(device: Path = Path("/dev/nvidiactl")) -> bool:
    """Look for an NVIDIA GPU by its driver's device file, or (under WSL) by what `nvidia-smi` lists."""
    if device.exists():
        return True
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return b"GPU 0" in listed.stdout


def _missing(what: str, debian: str, fedora: str) -> MissingRequirement:
    remedy = f"install it with `apt-get install {debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora)"
    return MissingRequirement(what=what, remedy=remedy)
