"""The processes of a server: which each is, by its command line, and its CPU seconds."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

OTHER = "other"
RENDERER = "chat renderer"
API_SERVER = "API server"
CORE = ("engine core", "engine GPU worker")
"""Processes of vLLM."""
_SIGNS = (
    ("VLLM::EngineCore", CORE[0]),
    ("VLLM::Worker", CORE[1]),
    ("VLLM::DPCoordinator", "vLLM's coordinator"),
    ("(?i)VLLM::API|vllm-rs", "vLLM's API server"),
    ("vllm.entrypoints.cli.main", "vLLM's main process"),
    (r"(runner|builder)\.cog_server|cog\.server\.http", "coglet server"),
    ("coglet.server._run_worker", "coglet worker"),
    ("triton_python_backend_stub .*/preprocessing/", "stub: preprocessing"),
    ("triton_python_backend_stub .*/postprocessing/", "stub: postprocessing"),
    ("triton_python_backend_stub .*/tensorrt_llm/", "stub: tensorrt_llm"),
    (r"-m runner\.triton_server\.front\b", "Triton front"),
    ("tritonserver", "triton"),
    ("runner.engines.server.main", "engine server"),
    ("runner.engines.engine_child", "engine child"),
    (r"-m runner\.api\b", API_SERVER),
    (r"-m runner\.chat\.sandbox\b", RENDERER),
)
"""A pattern of the command line, and the role of its process: the first that fits."""
ROLES = tuple(dict.fromkeys(role for _, role in _SIGNS))


@dataclass(frozen=True)
class Process:
    """One process. The kernel counts its CPU time in steps of 10 ms."""

    folder: Path
    command: str
    cpu_s: float

    @property
    def role(self) -> str:
        return role_of(self.command)


def processes(session: int | None = None) -> Iterator[Process]:
    """Yield all processes, or those of one session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended in the meantime.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if session is None or int(fields[3]) == session:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                ticks = int(fields[11]) + int(fields[12])
                yield Process(folder, command, ticks / _TICKS_PER_S)


def role_of(command: str) -> str:
    return next((role for pattern, role in _SIGNS if re.search(pattern, command)), OTHER)


def cpu_s_by_role(session: int | None = None) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for process in processes(session):
        seconds[process.role] += process.cpu_s  # type: ignore[assignment]
    return seconds


def memory_bytes(session: int) -> int:
    """Return the memory that all processes of a session have of their own (anonymous)."""
    total_bytes = 0
    for process in processes(session):
        with suppress(OSError):  # It has ended in the meantime.
            found = re.search(r"^RssAnon:\s+(\d+)", (process.folder / "status").read_text(), re.MULTILINE)
            total_bytes += int(found[1]) * 1024 if found else 0
    return total_bytes
