"""The message from the runner to a new API server: one JSON document on standard input."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from runner.settings.settings import Settings
from runner.settings.triton_address import TritonAddress


class APIStart(BaseModel):
    """The message. ``settings.engine_dir`` is the folder of the engine; the sockets are listening already."""

    model_config = ConfigDict(frozen=True)

    settings: Settings
    socket_fds: list[int]
    """Sockets for this process."""
    others_fds: list[int]
    """Sockets for the other processes of the API."""
    exit_reason_fd: int
    """See ``errors.wire.ExitReason``."""
    metrics_dir: Path
    """See ``runner.observability.meter``."""
    number: int
    """Number of this process, from 0."""
    texts_fd: int
    """See ``runner.api.limits.shared_counts``."""
    triton: TritonAddress | None
    """A Triton with NVIDIA's backend, ours or an external one; None with an engine server."""
    engine_socket: Path | None
    """The engine server's Unix socket; None with a Triton."""
