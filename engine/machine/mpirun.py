"""How ``mpirun`` (Open MPI) is found and called, by the builder and by the runner."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from errors.settings import MissingRequirement

_OUTER_MPI = re.compile(r"(OMPI|PMIX|PMI|ORTE|OPAL)_(?!MCA_)|OMPI_MCA_(orte|ess|pmix)_")
"""Variables of an MPI job that we may run in ourselves: with them, our job would not start."""


def find_mpirun(python: str = sys.executable) -> str | None:
    """Return the mpirun beside ``python``, else the machine's."""
    return shutil.which("mpirun", path=f"{Path(python).absolute().parent}:{os.environ.get('PATH', '')}")


def mpirun(python: str = sys.executable) -> list[str]:
    """Return the command's start: mpirun of ``python``'s environment, else the machine's. Raises E1008."""
    found = find_mpirun(python)
    if found is None:
        raise MissingRequirement(
            what="mpirun, which starts the processes of an engine on several GPUs",
            remedy="install Open MPI (Debian, Ubuntu: apt-get install openmpi-bin)",
        )
    # NOTE: otherwise each of two ranks is bound to one core; and there may be fewer cores than GPUs.
    command = [found, "--bind-to", "none", "--oversubscribe"]
    return [*command, "--allow-run-as-root"] if os.getuid() == 0 else command


def mpi_environment(environment: Mapping[str, str]) -> dict[str, str]:
    own = {key: value for key, value in environment.items() if not _OUTER_MPI.match(key)}
    # Ranks on one machine copy through shared memory; containers forbid the quicker way (ptrace).
    own.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    return own
