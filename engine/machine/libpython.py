"""Python's shared library, which the stub of Triton's Python backend loads. Standard library only."""

from __future__ import annotations

import ctypes.util
import sys
import sysconfig
from pathlib import Path


def libpython_dir(version: str) -> Path | None:
    """Find the library's folder; /usr/lib if the loader finds it by itself."""
    folder, multiarch = (sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "MULTIARCH"))
    folders = [folder, f"{folder}/{multiarch}", sysconfig.get_config_var("LIBPL") or ""]
    folders += [f"{sys.base_prefix}/{name}" for name in ("lib", "lib64")]
    name = f"libpython{version}.so.1.0"
    found = (Path(folder) for folder in folders if folder and Path(folder, name).is_file())
    by_loader = Path("/usr/lib") if ctypes.util.find_library(f"python{version}") else None
    return next(found, by_loader)
