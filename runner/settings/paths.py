"""Paths of the folder that a runner makes, and of the files that several of its processes use."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from errors.settings import InvalidSetting

_LONGEST_SOCKET_PATH_BYTES = 107
"""Limit of Linux's ``sun_path`` without its final zero."""


def runtime_dir(http_port: int) -> Path:
    """Return the folder, one per port and user: the next start uses it again."""
    return Path(tempfile.gettempdir()) / f"cog-triton-{os.getuid()}" / str(http_port)


def metrics_dir(http_port: int) -> Path:
    """Return the folder where the runner's processes keep their metrics."""
    return runtime_dir(http_port) / "metrics"


def engine_socket_path(http_port: int) -> Path:
    """Return the path where the engine server listens for its clients. Raises E1006."""
    path = runtime_dir(http_port) / "engine"
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        raise InvalidSetting(name="TMPDIR", expected="a shorter path", value=tempfile.gettempdir())
    return path


def make_runtime_dir(http_port: int) -> Path:
    path = runtime_dir(http_port)
    parent = path.parent
    while True:
        parent.mkdir(mode=0o700, exist_ok=True)
        if parent.stat().st_uid != os.getuid():
            raise InvalidSetting(
                name="TMPDIR", expected=f"a folder where {parent.name} is ours", value=str(parent.parent)
            )
        try:
            path.mkdir(exist_ok=True)
        except FileNotFoundError:  # Another process has just removed its own folder, and the empty parent.
            continue
        return path


def remove_runtime_dir(http_port: int) -> None:
    """Remove the folder of a port that no other runner will use: the next start would not find it."""
    path = runtime_dir(http_port)
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # The parent has other runners' folders.
        path.parent.rmdir()
