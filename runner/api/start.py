"""What the runner tells its OpenAI server at start: one message of JSON on standard input."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from runner.settings.settings import Settings


class Start(BaseModel):
    """``settings`` name the engine's folder as ``engine_dir``; ``socket_fd`` listens already."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    socket_fd: int
    exit_reason_fd: int
    """See ``errors.wire.ExitReason``."""
    metrics_dir: Path
    """See ``runner.observability.meter``."""
    shapes_path: Path
    """See ``runner.supervision.flight_recorder``."""
    slot_socket: Path | None
    """Where the slot listens for us; None: NVIDIA's C++ backend fills it."""

    @property
    def is_slot_ours(self) -> bool:
        return self.slot_socket is not None
