"""Python that runs what needs the engine's libraries: the engine environment's."""

import os
import sys
from collections.abc import Mapping

from engine.kinds import DEFAULT_ENVIRONMENT
from engine.machine.root import SOURCE_ROOT

ENGINE_PYTHON_VARIABLE = "COG_TRITON_ENGINE_PYTHON"


def engine_python(environment: Mapping[str, str] | None = None, folder: str = DEFAULT_ENVIRONMENT) -> str:
    """Return the engine's Python, unchecked: the variable's, ``folder``'s, the default's, or this one."""
    environment = os.environ if environment is None else environment
    if named := environment.get(ENGINE_PYTHON_VARIABLE):
        return named
    pythons = (SOURCE_ROOT / name / "bin" / "python" for name in (folder, DEFAULT_ENVIRONMENT))
    return next((str(python) for python in pythons if python.exists()), sys.executable)
