"""Leases of the engines of a cache, and removal of the least recently used of the others.

A process that uses an engine holds a shared lock on its folder; the lock ends with the process. The folder's
modification time is when the engine was last opened.
"""

import fcntl
import os
from pathlib import Path

from engine.directory import file_sizes
from engine.disk import writing
from engine.lock import try_locked
from engine.staging import discard, is_staged
from errors.engine_tar import EngineUnreadable


class Lease:
    """Object that keeps the engine in ``folder`` from being removed as long as it lives."""

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            os.utime(self._descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def make_room(engines: Path, wanted_bytes: int, limit_bytes: int) -> None:
    """Remove the engines in ``engines`` that were used least recently, to make room.

    Afterwards ``wanted_bytes`` more are within ``limit_bytes``, unless engines in use, which stay, exceed it.
    Other processes may remove engines meanwhile.
    """
    with writing(engines):
        folders = [path for path in engines.iterdir() if path.is_dir() and not is_staged(path)]
        kept = sorted(engine for folder in folders if (engine := _measured(folder)) is not None)
        kept_bytes = sum(size_bytes for _, _, size_bytes in kept)
        for _, folder, size_bytes in kept:
            if kept_bytes + wanted_bytes <= limit_bytes:
                return
            if _remove_unused(folder):
                kept_bytes -= size_bytes


def lock_path_of(folder: Path) -> Path:
    """Return the lock file that a process holds while it opens, makes or removes the engine in ``folder``."""
    return folder.with_name(f"{folder.name}.lock")


def _measured(folder: Path) -> tuple[int, Path, int] | None:
    """Return last use, folder and size in bytes; None if another process removes the engine meanwhile."""
    try:
        return (folder.stat().st_mtime_ns, folder, sum(size for _, size in file_sizes(folder)))
    except FileNotFoundError:
        return None
    except EngineUnreadable as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return None
        raise


def _remove_unused(folder: Path) -> bool:
    """Remove the engine in ``folder`` unless a process uses or opens it. Return True if it is gone."""
    with try_locked(lock_path_of(folder)) as is_unopened:
        if not is_unopened:
            return False
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                discard(folder)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
    return True
