"""Facts that the runner and its front share: the message to a new front, JSON on standard input."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from runner.settings.ports import TritonPorts
from runner.settings.settings import Settings

HEALTH_PATH = "/health"
"""Path of the front's own health."""


class FrontStart(BaseModel):
    """The sockets listen already; ``triton`` are the ports of loopback that Triton itself listens on."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    http_fd: int
    grpc_fd: int
    metrics_fd: int
    triton: TritonPorts
    engine_socket: Path | None
    """The engine server's Unix socket; None if NVIDIA's C++ backend fills the slot."""
    engine_kind: str
