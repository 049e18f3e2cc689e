"""Which engines of a cache are in use, and removing those that are not, the longest unused first.

Who uses an engine holds a shared lock on its folder; the lock ends with its process. The folder's time of
change is when the engine was last opened.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.directory import file_sizes
from engine.disk import writing
from engine.lock import try_lock, unlock
from engine.staging import discard, is_staged


class Lease:
    """Keeps the engine in ``folder`` from being removed, as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            os.utime(self._descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def make_room(engines: Path, wanted_bytes: int, limit_bytes: int) -> None:
    """Remove engines from the folder ``engines`` until ``wanted_bytes`` more are within ``limit_bytes``.

    Those in use stay, even if the limit can't be kept then.
    """
    with writing(engines):
        folders = [path for path in engines.iterdir() if path.is_dir() and not is_staged(path)]
        sizes = {path: sum(size for _, size in file_sizes(path)) for path in folders}
        kept_bytes = sum(sizes.values())
        for path in sorted(folders, key=lambda path: path.stat().st_mtime_ns):
            if kept_bytes + wanted_bytes <= limit_bytes:
                return
            with _unused(path) as is_unused:
                if is_unused:
                    discard(path)
                    kept_bytes -= sizes[path]


def lock_path_of(folder: Path) -> Path:
    """The lock of whoever opens, makes or removes the engine in ``folder``."""
    return folder.with_name(f"{folder.name}.lock")


@contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Whether nobody uses the engine in ``folder`` or is about to; nobody begins to inside."""
    opening = try_lock(lock_path_of(folder))
    if opening is None:
        yield False
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_unused = True
        except BlockingIOError:
            is_unused = False
        try:
            yield is_unused
        finally:
            os.close(descriptor)
    finally:
        unlock(lock_path_of(folder), opening)
