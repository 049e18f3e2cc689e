"""An engine that is still being fetched while Triton starts: who needs its files waits for their arrival.

The runner announces it by a file with what only the engine's files tell. Triton's models and the engine
worker import their libraries first and wait then. A Triton that is started again finds the file there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

PARAMETER = "engine_arrival"
"""Of Triton's models, and option of the worker: the file's path; empty where the engine is there."""

_POLL_S = 0.02


@dataclass(frozen=True)
class Arrived:
    """The tokens that end a text and that pad one, for callers that name none."""

    end_id: int
    pad_id: int


def announce(path: Path, arrived: Arrived) -> None:
    """Write the file in one step, so that readers see all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(arrived))
    part.rename(path)


def await_arrival(path: Path) -> Arrived:
    """Waits without an end: if the engine does not come, the runner ends Triton, and so who waits here."""
    while not path.exists():
        time.sleep(_POLL_S)
    return msgspec.json.decode(path.read_bytes(), type=Arrived)
