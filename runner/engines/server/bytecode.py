"""The bytecode of an engine's libraries, kept beside the engine's cache where they come without it.

pip compiles what it installs; uv does not, and images often forbid Python to write (by
``PYTHONDONTWRITEBYTECODE`` or a read-only file system). Then each start compiles again what it imports, which
for torch and vLLM takes longer than the import itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def keep_bytecode(packages: Iterable[str], folder: Path) -> bool:
    """Have this process and its children keep bytecode in ``folder`` if a package has none and can keep none.

    To be called before any of them is imported; a package that is not installed counts as none. Who has said
    where bytecode goes (``PYTHONPYCACHEPREFIX``) is left alone. Returns whether ``folder`` is used.
    """
    if sys.pycache_prefix is not None or not any(_stays_without(package) for package in packages):
        return False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return True


def _stays_without(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or spec.cached is None or Path(spec.cached).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)
