"""engine.tar -> directory, in one pass: verified while it is written, there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.archive import ByteStream, Member
from engine.compression import plain_tar
from engine.contents import ContentReader, Write
from engine.disk import require_space, writing
from engine.manifest import Manifest
from engine.progress import Progress
from engine.staging import staged
from errors.engine_artifact import EngineNotWritable


def unpack(
    stream: ByteStream,
    target: Path,
    *,
    place: str = "engine.tar",
    size_bytes: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Unpack the tar (or tar.gz) that ``stream`` delivers into the new directory ``target``.

    The tar is read once and never stored. ``place`` names it in errors; ``size_bytes`` is its size, if
    known. ``target`` may exist if it is empty. Every error is coded (13xx) and leaves nothing behind.
    For a tar without a manifest the one returned is derived, and not written.
    """
    if target.exists() and not _is_empty_directory(target):
        raise EngineNotWritable(place=target, reason="it exists already and is not an empty directory")
    tar = plain_tar(stream, place, size_bytes)
    with staged(target) as folder:
        require_space(folder.parent, tar.size_bytes or 0)
        files = _NewFiles(folder)
        reader = ContentReader(
            tar, place, files.create, what="unpacking", size_bytes=tar.size_bytes, progress=progress
        )
        manifest = reader.read_all()
        if reader.manifest is None:
            _flush_to_disk(folder / name for name in manifest.files)
    return manifest


class _NewFiles:
    """The files of a new directory. Names come from TarReader: they are plain, and no link is ever made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = {folder}
        with writing(folder):
            folder.mkdir()

    @contextmanager
    def create(self, member: Member) -> Iterator[Write]:
        path = self._folder / member.name
        require_space(self._folder, member.size_bytes)
        with writing(path):
            if path.parent not in self._made:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._made.add(path.parent)
            # NOTE: never preallocated, so that after a power loss a file whose data did not reach the disk
            # is too short, and loading the engine notices it without reading it.
            file = path.open("xb", buffering=0)

        def write(chunk: memoryview) -> None:
            with writing(path):
                while chunk:
                    chunk = chunk[file.write(chunk) :]

        with file:
            yield write


def _flush_to_disk(paths: Iterable[Path]) -> None:
    """Without a manifest nothing tells later that a power loss shortened a file."""
    for path in paths:
        with writing(path), path.open("rb+") as file:
            os.fsync(file.fileno())


def _is_empty_directory(path: Path) -> bool:
    with writing(path):
        return path.is_dir() and not any(path.iterdir())
