"""The folder of our packages: a checkout, ``/src`` or site-packages. Python 3.8 can run this module."""

from __future__ import annotations

import os
from pathlib import Path

from engine.redact import without_secret_variables

SOURCE_ROOT = Path(__file__).resolve().parents[2]

IS_CHECKOUT = (SOURCE_ROOT / "Makefile").is_file()

SET_UP = "run `make setup`" if IS_CHECKOUT else "run `pip install 'cog-triton[serve]'`"
"""Command that installs a package that is missing."""


def own_environment() -> dict[str, str]:
    """Return the environment for a process of ours: without secrets, as it may run a model's own code."""
    environment = without_secret_variables(os.environ)
    return environment | {"PYTHONPATH": str(SOURCE_ROOT), "PYTHONSAFEPATH": "1"}
