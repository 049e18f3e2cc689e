"""Which Python runs what needs the engine's libraries: the engine environment's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ENGINE_PYTHON_VARIABLE = "COG_TRITON_ENGINE_PYTHON"

_CHECKOUT_PYTHON = Path(__file__).resolve().parents[2] / ".venv-engine" / "bin" / "python"
"""Where `make setup` puts it in a checkout."""


def engine_python(environment: Mapping[str, str] | None = None) -> str:
    """The variable's Python, else the checkout's engine environment, else this one. Not checked here."""
    environment = os.environ if environment is None else environment
    if named := environment.get(ENGINE_PYTHON_VARIABLE):
        return named
    return str(_CHECKOUT_PYTHON) if _CHECKOUT_PYTHON.exists() else sys.executable
