"""What this machine must provide before anything can be installed: a Python, its shared library, a C library.

NOTE: this file, and the errors it raises, keep to what Python 3.8 can run, so that an old ``python3`` too can
look for a newer one or say what is missing. Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from errors.settings import InvalidSetting, MissingRequirement

# In order of preference: for 3.11 and 3.12 the hash of torch's CPU wheel is known.
SUPPORTED_VERSIONS = ("3.11", "3.12", "3.10")
ANY_SUPPORTED = "Python 3.10, 3.11 or 3.12"
OLDEST_GLIBC = (2, 35)  # the wheel of nvidia-pytriton, which brings Triton, is a manylinux_2_35 one

# Run by each candidate: what only that Python knows about itself.
_PROBE = """
import ctypes.util, importlib.util, json, os, platform, sys, sysconfig
version = "{}.{}".format(*sys.version_info)
library = "libpython{}.so.1.0".format(version)
folders = [sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "LIBPL")]
folders += [os.path.join(folders[0], sysconfig.get_config_var("MULTIARCH") or "")]
folders += [os.path.join(sys.base_prefix, name) for name in ("lib", "lib64")]
print(json.dumps({
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    "has_library": any(os.path.isfile(os.path.join(folder, library)) for folder in folders if folder)
    or ctypes.util.find_library("python" + version) is not None,
}))
"""


@dataclass(frozen=True)
class Python:
    """A Python of this machine: its own command, never a virtual environment's.

    ``has_library``: it has a shared libpython, which the stub of Triton's Python backend loads.
    """

    executable: str
    version: str
    has_venv: bool
    has_library: bool

    @property
    def minor_version(self) -> str:
        return _minor(self.version)

    def missing(self) -> list[MissingRequirement]:
        """What this Python lacks; empty when it can be used."""
        name = f"python{self.minor_version}"
        found = []
        if not self.has_venv:
            found.append(_missing(f"the venv module of {self.executable}", f"{name}-venv", name))
        if not self.has_library:
            found.append(_missing(f"lib{name}.so.1.0 of {self.executable}", f"lib{name}", name))
        return found


def choose_python(setting: str, path: str) -> Python:
    """The Python to use: the one that ``PYTHON`` (``setting``) names, else the best complete one on ``path``.

    Raises InvalidSetting if ``setting`` is no Python we can use, MissingRequirement if ``path`` holds none.
    It may lack something if ``setting`` names it or nothing better was found: see ``missing()``.
    """
    if setting:
        chosen = describe(setting)
        if chosen is None:
            raise InvalidSetting(name="PYTHON", expected=f"the command of a {ANY_SUPPORTED}", value=setting)
        return chosen
    incomplete = None
    for executable in candidates(path):
        found = describe(executable)
        if found and not found.missing():
            return found
        incomplete = incomplete or found
    if incomplete is None:
        what = f"{ANY_SUPPORTED} (this is {platform.python_version()}, {sys.executable})"
        remedy = f"{_remedy('python3 python3-venv', 'python3.12')}, or name one with PYTHON="
        raise MissingRequirement(what=what, remedy=remedy)
    return incomplete


def candidates(path: str) -> Iterator[str]:
    """Every command in the folders of ``path`` that may be a Python we can use, best first, each once."""
    seen = set()
    for name in [f"python{version}" for version in SUPPORTED_VERSIONS] + ["python3"]:
        for folder in filter(None, path.split(os.pathsep)):
            executable = Path(folder, name)
            if executable not in seen and executable.is_file() and os.access(executable, os.X_OK):
                seen.add(executable)
                yield str(executable)


def describe(executable: str) -> Python | None:
    """The Python behind a command; None if it does not run or is not a CPython we support."""
    try:
        facts = json.loads(_output_of(executable, "-c", _PROBE))
    except ValueError:
        return None
    version = facts["version"]
    if facts["implementation"] != "CPython" or _minor(version) not in SUPPORTED_VERSIONS:
        return None
    return Python(facts["executable"], version, facts["has_venv"], facts["has_library"])


def missing_from_system(system: str, machine: str, glibc: str, path: str) -> list[MissingRequirement]:
    """What the system lacks whatever the Python; empty when it can be used.

    ``system`` and ``machine`` are what `uname` says, ``glibc`` is its version or "" for another C library,
    ``path`` the folders that commands are looked up in.
    """
    found = []
    if (system, machine) != ("Linux", "x86_64"):
        remedy = f"this is {system} on {machine}, for which there is no Triton to install"
        found.append(MissingRequirement(what="Linux on x86_64", remedy=remedy))
    elif tuple(int(number) for number in re.findall(r"\d+", glibc)[:2]) < OLDEST_GLIBC:
        present = glibc or "another C library"
        remedy = f"this system has {present}: use Debian 12, Ubuntu 22.04, Fedora 36 or newer"
        found.append(MissingRequirement(what="glibc {}.{} or newer".format(*OLDEST_GLIBC), remedy=remedy))
    found += [_missing(name, name, name) for name in ("git", "make") if not shutil.which(name, path=path)]
    return found


def glibc_version() -> str:
    """The version of the C library this runs on, such as ``2.36``; "" if it is not glibc."""
    name, version = platform.libc_ver()
    return version if name == "glibc" else ""


def has_nvidia_gpu(device: Path = Path("/dev/nvidiactl")) -> bool:
    """Whether an NVIDIA GPU is here: the driver's device file is, or (under WSL) `nvidia-smi` lists one."""
    return device.exists() or "GPU 0" in _output_of("nvidia-smi", "-L")


def _output_of(*command: str) -> str:
    """What a command prints, or nothing if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def _missing(what: str, debian: str, fedora: str) -> MissingRequirement:
    return MissingRequirement(what=what, remedy=_remedy(debian, fedora))


def _remedy(debian: str, fedora: str) -> str:
    return f"install it with `apt-get install {debian}` (Debian, Ubuntu) or `dnf install {fedora}` (Fedora)"
