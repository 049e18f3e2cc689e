"""Where an OSError of the disk becomes one of our codes, and room is asked for before it is needed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from errors.engine_tar import EngineNotWritable, EngineUnreadable, NoSpaceLeft

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Anything the disk refuses inside is NoSpaceLeft or EngineNotWritable, and about ``place``."""
    try:
        yield
    except OSError as exc:
        raise disk_error(place, exc) from exc


def disk_error(place: Path, error: OSError) -> NoSpaceLeft | EngineNotWritable:
    """What ``writing`` raises, for who can't afford it for each of many thousand files."""
    reason = error.strerror or str(error)
    kind = NoSpaceLeft if error.errno in _NO_SPACE else EngineNotWritable
    return kind(place=place, reason=reason)


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Anything the disk refuses inside is EngineUnreadable, and about ``place``."""
    try:
        yield
    except OSError as exc:
        raise EngineUnreadable(place=place, reason=exc.strerror or str(exc)) from exc


def require_space(folder: Path, needed_bytes: int) -> None:
    """NoSpaceLeft unless the disk of ``folder`` has ``needed_bytes`` free: better now than in an hour."""
    with writing(folder):
        free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise NoSpaceLeft(place=folder, reason=f"it needs {needed_bytes} bytes, {free_bytes} are free")
