"""engine.tar -> directory, in one pass: verified while it is written, there as a whole or not at all."""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from engine.disk import disk_error, require_space, writing
from engine.progress import Progress
from engine.staging import staged
from engine.tar.contents import ContentReader
from engine.tar.file_writer import Write
from engine.tar.manifest import Manifest
from engine.tar.window import ByteStream
from errors.engine_tar import EngineNotWritable

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def unpack(
    stream: ByteStream, target: Path, *, size_bytes: int | None = None, progress: Progress | None = None
) -> Manifest:
    """Unpack the tar (or tar.gz) that ``stream`` delivers into the new directory ``target``.

    The tar is read once and never stored. ``size_bytes`` is its size, if known. ``target`` may exist if it is
    empty. Every error is coded (13xx) and leaves nothing behind. Return the manifest; for a tar without one,
    a derived one, which is not written.
    """
    return unpack_content(ContentReader(stream, "engine.tar", size_bytes), target, progress)


def unpack_content(reader: ContentReader, target: Path, progress: Progress | None) -> Manifest:
    """Unpack like ``unpack`` a tar whose manifest may have been read already."""
    if target.exists() and not _is_empty_directory(target):
        raise EngineNotWritable(place=target, reason="it exists already and is not an empty directory")
    with staged(target) as folder:
        require_space(folder.parent, reader.size_bytes or 0)
        with _NewFiles(folder) as files:
            found = reader.read_all(files, progress)
        if reader.manifest is None:
            _flush_to_disk(folder / name for name in found.files)
    return found


class _NewFiles(AbstractContextManager["_NewFiles"]):
    """Files of a new directory. Names come from TarReader: they are plain, and no link is ever made.

    NOTE: never preallocated, so that after a power loss a file whose data did not reach the disk is too
    short, and loading the engine notices it without reading it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder):
            folder.mkdir()
            self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def write(self, name: str, content: memoryview) -> None:
        try:
            descriptor = self._open(name)
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
        except OSError as exc:
            raise disk_error(self._folder / name, exc) from exc

    @contextmanager
    def create(self, name: str, size_bytes: int) -> Iterator[Write]:
        path = self._folder / name
        require_space(self._folder, size_bytes)
        with writing(path):
            descriptor = self._open(name)

        def write(chunk: memoryview) -> None:
            with writing(path):
                _write_all(descriptor, chunk)

        try:
            yield write
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            return os.open(name, _NEW_FILE, 0o666, dir_fd=self._descriptor)
        except FileNotFoundError:
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            return os.open(name, _NEW_FILE, 0o666, dir_fd=self._descriptor)


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _flush_to_disk(paths: Iterable[Path]) -> None:
    """Flush files to the disk: without a manifest, one that a power loss shortened would go unnoticed."""
    for path in paths:
        with writing(path), path.open("rb+") as file:
            os.fsync(file.fileno())


def _is_empty_directory(path: Path) -> bool:
    with writing(path):
        return path.is_dir() and not any(path.iterdir())
