"""A lock between processes that is released when its holder ends."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NAP_S = 0.05


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wait for the lock file ``path`` and hold it in the block.

    ``on_wait`` is called once if the lock is taken. Holders in the same process exclude each other too.
    """
    descriptor = _take(path)
    if descriptor is None:
        on_wait()
    while descriptor is None:
        time.sleep(_NAP_S)  # NOTE: short sleeps, so that Cog can cancel a build.
        descriptor = _take(path)
    try:
        yield
    finally:
        _release(path, descriptor)


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock file ``path`` in the block, or provide False if another holder has it."""
    descriptor = _take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(path, descriptor)


def _take(path: Path) -> int | None:
    """Open and lock the file. Return None if another holder has it, or unlinked it meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _release(path: Path, descriptor: int) -> None:
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
