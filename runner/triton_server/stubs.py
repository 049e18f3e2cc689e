"""Triton's stubs: the processes that hold its Python models.

Triton does not notice that a stub has ended or was stopped: its model fails from then on, and its requests
wait for ever. So the supervisor watches them.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.machine.processes import children_by_parent, name_of

_MODEL = re.compile(rb"/([^/\0]+)/1/model\.py")


def stubs_of(triton_pid: int) -> list[int]:
    """The process ids of Triton's children; of mpirun's Tritons, and of theirs."""
    by_parent = children_by_parent()
    children = by_parent.get(triton_pid, [])
    tritons = [pid for pid in children if name_of(pid) == "tritonserver"]
    return children + [stub for pid in tritons for stub in by_parent.get(pid, [])]


def describe_stub(pid: int) -> str:
    """A process of Triton in an operator's words. Call it while the process runs."""
    try:
        model = _MODEL.search((Path("/proc") / str(pid) / "cmdline").read_bytes())
    except OSError:
        model = None  # It is gone.
    return f"the process of its Python model {model[1].decode()}" if model else "one of its processes"
