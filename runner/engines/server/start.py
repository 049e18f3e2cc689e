"""The message from the runner to a new engine server: one JSON document on standard input."""

from __future__ import annotations

from pathlib import Path

import msgspec


class EngineStart(msgspec.Struct, frozen=True):
    """``socket_fd`` is already listening; ``exit_reason_fd``: see ``errors.wire.ExitReason``."""

    engine_kind: str
    engine_dir: Path
    options: dict[str, str]
    """The kind's own, as text: see ``engines.protocol.options``."""
    arrival: Path
    """See ``runner.engines.protocol.arrival``."""
    socket_fd: int = -1
    exit_reason_fd: int = -1
    hang_timeout_s: float = 300.0
    """Time after which an engine whose requests wait and get nothing is replaced; 0: never."""
    metrics_dir: Path | None = None
    """See ``runner.observability.meter``."""
    restarts: int = 0
    """How often the engine was started again before."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def decode(cls, data: bytes) -> EngineStart:
        return msgspec.json.decode(data, type=cls, dec_hook=lambda kind, value: kind(value))
