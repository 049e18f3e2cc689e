"""Puts the smaller library in place of the old one.

Each container keeps its place, its header with a smaller size, and the entries that stay, moved together; the
rest of its room is zeros. Every other byte of the file stays, and so do its length, mode, owner and times.
The new file is written beside the old one, read back, and renamed over it, so that a library is either the
old one or the new one at every moment. What is zero is left out when writing: a hole where the file system
has holes.
"""

import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from .elf import SlimError
from .fatbin import HEADER_SIZE
from .library import Cut, Survey, survey

#: A file with this suffix is left by a run that was killed; the next run writes the same name again.
UNFINISHED_SUFFIX = ".slim-unfinished"

_WINDOW = 4 << 20
_SIZE_AT = 8


def rewrite(plan: Survey, sm: int) -> None:
    """Apply `plan` to its library. Raise SlimError if that is impossible or the file has changed."""
    try:
        _replace(plan, sm, plan.path.with_name(f".{plan.path.name}{UNFINISHED_SUFFIX}"))
    except OSError as error:
        raise SlimError(f"{plan.path} is left as it was: {error.strerror}") from error


def _replace(plan: Survey, sm: int, unfinished: Path) -> None:
    try:
        with plan.path.open("rb") as old, unfinished.open("wb") as new:
            status = os.fstat(old.fileno())
            if (status.st_size, status.st_mtime_ns) != (plan.file_size, plan.mtime_ns):
                raise SlimError(f"{plan.path} was changed by someone else meanwhile; start again")
            _write(plan, old, new)
        made = survey(unfinished, sm)
        if made is None or _outcome(made) != replace(_outcome(plan), dropped=0):
            raise SlimError(f"{plan.path} would not become what was planned; it is left as it was")
        if (unfinished.stat().st_uid, unfinished.stat().st_gid) != (status.st_uid, status.st_gid):
            os.chown(unfinished, status.st_uid, status.st_gid)
        shutil.copystat(plan.path, unfinished)
        unfinished.replace(plan.path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(plan: Survey, old: BinaryIO, new: BinaryIO) -> None:
    new.truncate(plan.file_size)
    position = 0
    for cut in plan.cuts:
        _copy(old, new, position, position, cut.container.offset + HEADER_SIZE - position)
        for place, entry_offset, size in _moves(cut):
            _copy(old, new, entry_offset, place, size)
        entries_size = sum(entry.size for entry in cut.keep)
        new.seek(cut.container.offset + _SIZE_AT)
        new.write(struct.pack("<Q", entries_size))
        position = cut.container.end
    _copy(old, new, position, position, plan.file_size - position)


def _moves(cut: Cut) -> Iterator[tuple[int, int, int]]:
    place = cut.container.offset + HEADER_SIZE
    for entry in cut.keep:
        yield place, entry.offset, entry.size
        place += entry.size


def _copy(source: BinaryIO, target: BinaryIO, source_offset: int, target_offset: int, size: int) -> None:
    source.seek(source_offset)
    for done in range(0, size, _WINDOW):
        window = source.read(min(size - done, _WINDOW))
        if len(window) < min(size - done, _WINDOW):
            raise SlimError("a library ended while it was being copied; start again")
        if window.strip(b"\0"):  # else the zeros are there already: the file was made at its full length
            target.seek(target_offset + done)
            target.write(window)


def _outcome(one: Survey) -> Survey:
    return replace(one, path=Path(), mtime_ns=0, cuts=())
