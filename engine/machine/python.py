"""Python that runs what needs the engine's libraries: the engine environment's."""

import os
import sys
from collections.abc import Mapping

from engine.kinds import DEFAULT_ENVIRONMENT
from engine.machine.root import SOURCE_ROOT

ENGINE_PYTHON_VARIABLE = "COG_TRITON_ENGINE_PYTHON"


def engine_python(environment: Mapping[str, str] | None = None, folder: str = DEFAULT_ENVIRONMENT) -> str:
    """Return the path of the engine's Python, without a check that it works.

    It is the one that the variable COG_TRITON_ENGINE_PYTHON names, else that of the environment
    ``folder`` or of the default environment in the checkout, else this Python.
    """
    environment = os.environ if environment is None else environment
    if named := environment.get(ENGINE_PYTHON_VARIABLE):
        return named
    pythons = (SOURCE_ROOT / name / "bin" / "python" for name in (folder, DEFAULT_ENVIRONMENT))
    return next((str(python) for python in pythons if python.exists()), sys.executable)
