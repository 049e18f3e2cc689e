"""The message from the runner to a new engine server: one JSON document on standard input."""

from pathlib import Path

import msgspec


class EngineStart(msgspec.Struct, frozen=True):
    """The message. ``socket_fd`` is already listening; ``exit_reason_fd``: see ``errors.wire.ExitReason``."""

    engine_kind: str
    engine_dir: Path
    options: dict[str, str]
    """Options of the engine kind, as text: see ``engines.protocol.options``."""
    arrival: Path
    """Path: see ``runner.engines.protocol.arrival``."""
    socket_fd: int = -1
    exit_reason_fd: int = -1
    hang_timeout_s: float = 300.0
    """Time after which an engine whose requests wait and get nothing is replaced; 0: never."""
    metrics_dir: Path | None = None
    """Folder: see ``runner.observability.meter``."""
    restarts: int = 0
    """Number of times that the engine was started again before."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def decode(cls, data: bytes) -> "EngineStart":
        return msgspec.json.decode(data, type=cls, dec_hook=lambda kind, value: kind(value))
