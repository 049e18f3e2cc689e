"""The builder's folders and how files get into them: without copying gigabytes."""

import errno
import os
import shutil
from pathlib import Path

from engine.disk import disk_error, is_full
from engine.words import in_words
from errors.build import BuildFailed, NotEnoughSpace
from errors.coded_error import CodedError

CACHE_VARIABLE = "COG_TRITON_CACHE"


def cache_folder() -> Path:
    """Return the folder of downloads: COG_TRITON_CACHE, else ``cog-triton`` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cog-triton"


def place(source: Path, destination: Path, *, or_link: bool = False) -> None:
    """Make ``source`` appear as ``destination``, in a folder that is made if needed.

    ``destination`` is a hard link where that is possible, else a symbolic link with ``or_link``, else a copy.
    """
    destination.parent.mkdir(exist_ok=True)
    try:
        os.link(source.resolve(), destination)
    except OSError as exc:
        if exc.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        if or_link:
            destination.symlink_to(source.resolve())
        else:
            shutil.copyfile(source, destination)


def build_error(error: OSError, path: object) -> CodedError:
    """Translate an error of the disk during a build; ``path`` is named if the error names none."""
    place = error.filename2 or error.filename or path
    if is_full(error):
        return disk_error(place, error)
    return BuildFailed(reason=error.strerror or str(error), path=place)


def need_space(folder: Path, needed_bytes: int, *, purpose: str) -> None:
    """Raise NotEnoughSpace unless ``folder`` (existing or to be made) has room for ``needed_bytes``."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        raise NotEnoughSpace(
            folder=existing,
            free=in_words(free_bytes),
            purpose=purpose,
            needed=in_words(needed_bytes),
            variable=CACHE_VARIABLE,
        )
