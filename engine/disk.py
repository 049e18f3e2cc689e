"""The disk: its OSErrors as coded errors, its free space, the digest of a file."""

import errno
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.words import in_words
from errors.bounded_repr import bounded_repr
from errors.coded_error import CodedError
from errors.engine_tar import EngineNotWritable, EngineUnreadable, NoSpaceLeft

_READ_BYTES = 1 << 20
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Translate an OSError of the block into NoSpaceLeft or EngineNotWritable, which name ``place``."""
    try:
        yield
    except OSError as exc:
        raise disk_error(place, exc) from exc


def disk_error(place: object, error: OSError) -> NoSpaceLeft | EngineNotWritable:
    """Return the error that ``writing`` raises. Use it where a context manager per file is too slow."""
    reason = error.strerror or str(error)
    kind = NoSpaceLeft if is_full(error) else EngineNotWritable
    return kind(place=place, reason=reason)


def is_full(error: OSError) -> bool:
    return error.errno in _NO_SPACE


def any_disk_error(error: OSError) -> CodedError:
    """Return the error that ``writing`` or ``reading`` raises, for an error that may come from either."""
    if is_full(error) or error.errno == errno.EROFS:
        return disk_error(error.filename2 or error.filename or "the disk", error)
    return EngineUnreadable(place=bounded_repr(error.filename), reason=error.strerror or str(error))


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Translate an OSError of the block into EngineUnreadable, which names ``place``."""
    try:
        yield
    except OSError as exc:
        raise EngineUnreadable(place=place, reason=exc.strerror or str(exc)) from exc


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise NoSpaceLeft unless the disk of ``folder`` has ``needed_bytes`` free."""
    with writing(folder):
        free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        reason = f"it needs {in_words(needed_bytes)}, {in_words(free_bytes)} are free"
        raise NoSpaceLeft(place=folder, reason=reason)
