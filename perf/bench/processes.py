"""What each process of a server costs: CPU seconds and memory, by what the process is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

ROLES = (
    "coglet server",
    "coglet worker",
    "triton",
    "stub: preprocessing",
    "stub: postprocessing",
    "stub: tensorrt_llm",
    "engine worker",
)
OTHER = "other"


def cpu_s_by_role(session: int) -> Counter[str]:
    """CPU seconds so far of the session's processes. The kernel counts in steps of 10 ms."""
    seconds: Counter[str] = Counter()
    for role, fields in _processes(session):
        user, system = fields[11:13]
        seconds[role] += (int(user) + int(system)) / _TICKS_PER_S  # type: ignore[assignment]
    return seconds


def resident_bytes(session: int) -> int:
    """Memory of all the session's processes; pages that several share count several times."""
    return sum(int(fields[21]) * _PAGE_BYTES for _, fields in _processes(session))


def role_of(command: str) -> str:
    """What a process is, by its command line."""
    if "triton_python_backend_stub" in command:
        return next((role for role in ROLES if f"/{role.removeprefix('stub: ')}/" in command), OTHER)
    signs = (
        ("runner.cog_server", "coglet server"),
        ("cog.server.http", "coglet server"),
        ("coglet.server._run_worker", "coglet worker"),
        ("tritonserver", "triton"),
        ("runner.engines.worker.main", "engine worker"),
    )
    return next((role for sign, role in signs if sign in command), OTHER)


def _processes(session: int) -> Iterator[tuple[str, list[str]]]:
    """Role, and what ``/proc/PID/stat`` says after the name (from the state on), of a session's processes."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended while we looked.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield role_of(command), fields
