"""Make a file or folder beside its final place and put it there in one step, whole or not at all."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.disk import writing
from engine.lock import locked, try_locked

_MARK = ".cog-triton-staged-"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Provide a free path to make ``target`` at, beside it; what is there vanishes if the block raises."""
    with ExitStack() as stack:
        with writing(target.parent):
            path = stack.enter_context(scratch(target))
        yield path
        with writing(target):
            path.rename(target)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """Provide a free path beside ``beside``; what the block makes there vanishes.

    A lock file shows that its process runs: what a killed process left is removed by the next ``scratch``
    or ``remove_stale`` in the same folder.
    """
    path = beside.with_name(f".{beside.name}{_MARK}{secrets.token_hex(4)}")
    beside.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(beside.parent)
    with locked(_lock_of(path)):
        try:
            yield path
        finally:
            _remove(path)


def remove_stale(folder: Path) -> None:
    """Remove what killed processes were making in ``folder``."""
    for path in folder.glob(f".*{_MARK}*"):
        lock_path = path if path.suffix == ".lock" else _lock_of(path)
        with try_locked(lock_path) as is_stale:
            if is_stale:
                _remove(lock_path.with_suffix(""))


def is_staged(path: Path) -> bool:
    """Return True if ``staged`` has left or is making ``path``."""
    return path.name.startswith(".") and _MARK in path.name


def discard(folder: Path) -> None:
    """Remove ``folder`` so that no other process sees it half removed."""
    with writing(folder):
        doomed = folder.with_name(f".{folder.name}{_MARK}{secrets.token_hex(4)}")
        folder.rename(doomed)
        _remove(doomed)


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
