"""Triton's stubs: the processes that hold its Python models. Triton does not notice that one is gone.

A stub that ends (killed for memory, say) leaves Triton up, its model failing for ever and the requests it
had waiting for ever: the supervisor has to see it.
"""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def stubs_of(triton_pid: int) -> list[int]:
    """The process ids of Triton's children; of mpirun's Tritons, and of theirs."""
    children = [int(path.name) for path in _PROC.glob("[0-9]*") if _state_and_parent(path)[1] == triton_pid]
    tritons = [pid for pid in children if _name(pid) == "tritonserver"]
    return children + [stub for pid in tritons for stub in stubs_of(pid)]


def has_ended(pid: int) -> bool:
    """True once the process is gone or waits to be asked how it went."""
    return _state_and_parent(_PROC / str(pid))[0] in "ZX"


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""  # It ended before we looked.


def _state_and_parent(process: Path) -> tuple[str, int]:
    try:
        # What stands after the name, which is in parentheses.
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "X", 0  # It ended before we looked.
    return state, int(parent)
