"""The folder for what is made while a runner serves, and what is in it for all its processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from errors.settings import InvalidSetting

_LONGEST_SOCKET_PATH_BYTES = 107
"""Linux's ``sun_path`` without its final zero."""


def runtime_dir(http_port: int) -> Path:
    """The folder for what is made at start, one per port and user: used again, so nothing piles up."""
    return Path(tempfile.gettempdir()) / f"cog-triton-{os.getuid()}" / str(http_port)


def metrics_dir(http_port: int) -> Path:
    """Where the processes of the runner whose Triton has that port count; see ``observability.meter``."""
    return runtime_dir(http_port) / "metrics"


def openai_shapes_path(http_port: int) -> Path:
    """Where that runner's OpenAI-compatible API keeps ``runner.supervision.flight_recorder``."""
    return runtime_dir(http_port) / "openai_requests"


def slot_socket_path(http_port: int) -> Path:
    """Where that runner's slot listens for the runner's own processes. Raises E1006."""
    path = runtime_dir(http_port) / "slot"
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        raise InvalidSetting(name="TMPDIR", expected="a shorter path", value=tempfile.gettempdir())
    return path


def make_runtime_dir(http_port: int) -> Path:
    path = runtime_dir(http_port)
    parent = path.parent
    parent.mkdir(mode=0o700, exist_ok=True)
    if parent.stat().st_uid != os.getuid():
        raise InvalidSetting(
            name="TMPDIR", expected=f"a folder where {parent.name} is ours", value=str(parent.parent)
        )
    path.mkdir(exist_ok=True)
    return path
