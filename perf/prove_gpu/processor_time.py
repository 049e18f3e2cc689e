"""Which of the processes that are measured took how much processor time."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

_ROLES = (
    ("VLLM::EngineCore", "engine core"),
    ("VLLM::Worker", "engine GPU worker"),
    ("runner.engines.worker.main", "engine worker"),
    ("triton_python_backend_stub", "slot"),
    ("tritonserver", "Triton"),
    ("cog", "Cog"),
    ("multiprocessing.spawn", "client"),
    ("resident.py", "in process"),
    ("openai.api_server", "OpenAI server"),
)
"""What a command line holds, and whose it then is: the first that fits."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> Counter[str]:
    """Processor seconds so far, of all processes alive, by role."""
    spent: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended while we looked.
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            role = next((role for part, role in _ROLES if part in command), None)
            if role is not None:
                # What stands after the name, which is in parentheses: fields 14 and 15 of the whole.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                spent[role] += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # type: ignore[assignment]
    return spent


def since(before: Counter[str]) -> dict[str, float]:
    """What each role has spent since, where it shows."""
    now = processor_seconds()
    return {role: round(now[role] - before[role], 2) for role in now if now[role] - before[role] >= 0.05}
