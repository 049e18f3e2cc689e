"""Announcement of the engine to processes that start while it is still downloaded, and need its files.

The runner announces the engine by a file with the facts that only the engine's files hold. Triton's models
and the engine server import their libraries first, then wait. Restarted processes find the file at once.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

PARAMETER = "engine_arrival"
"""Parameter of Triton's models: the file's path; empty if the engine is present."""

_POLL_S = 0.02


@dataclass(frozen=True)
class Arrived:
    """Default tokens that end a text and that pad one; limits of a prompt."""

    end_ids: tuple[int, ...]
    """The engine itself ends at the first one."""
    pad_id: int
    max_prompt_bytes: int = 1 << 16
    max_prompt_tokens: int = 1 << 11


def announce(path: Path, arrived: Arrived) -> None:
    """Write the file in one step, so that readers see all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(arrived))
    part.rename(path)


def await_arrival(path: Path) -> Arrived:
    """Wait without a limit: if the download fails, the runner ends Triton and the processes that wait."""
    while not path.exists():
        time.sleep(_POLL_S)
    return msgspec.json.decode(path.read_bytes(), type=Arrived)
