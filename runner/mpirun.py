"""How ``mpirun`` (Open MPI) is found and called, here and in the engine environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from errors.prompt import MissingRequirement

_OUTER_MPI = re.compile(r"(OMPI|PMIX|PMI|ORTE|OPAL)_(?!MCA_)|OMPI_MCA_(orte|ess|pmix)_")
"""Variables of an MPI job that we may run in ourselves: with them, ours would not start."""


def mpirun() -> list[str]:
    """The command's beginning: the environment's own mpirun, else the machine's. Raises E1008."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise MissingRequirement(
            what="mpirun, which starts the processes of an engine on several GPUs",
            remedy="install Open MPI (Debian, Ubuntu: apt-get install openmpi-bin)",
        )
    # NOTE: otherwise each of two ranks is bound to one core; and there may be fewer cores than GPUs.
    command = [found, "--bind-to", "none", "--oversubscribe"]
    return [*command, "--allow-run-as-root"] if os.getuid() == 0 else command


def mpi_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for mpirun."""
    own = {key: value for key, value in environment.items() if not _OUTER_MPI.match(key)}
    # Ranks on one machine copy through shared memory; what is quicker containers forbid (ptrace).
    own.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
    return own
