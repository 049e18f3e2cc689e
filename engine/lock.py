"""A lock between processes that is released when its holder ends."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def lock(path: Path, on_wait: Callable[[], None] = lambda: None) -> int:
    """Wait for the lock file ``path`` and return a descriptor that holds it, for ``unlock``.

    ``on_wait`` is called once if the lock is taken. Holders in the same process exclude each other too.
    """
    descriptor = try_lock(path)
    if descriptor is None:
        on_wait()
    while descriptor is None:
        descriptor = _open_and_lock(path, fcntl.LOCK_EX)
    return descriptor


def try_lock(path: Path) -> int | None:
    """Take the lock like ``lock``, but return None if another holder has it."""
    try:
        return _open_and_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def unlock(path: Path, descriptor: int) -> None:
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _open_and_lock(path: Path, operation: int) -> int | None:
    """Open and lock the file. None if its holder unlinked it meanwhile: the lock is on a deleted file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, operation)
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
