"""Read every byte of an engine and verify it against the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.directory import file_sizes, load
from engine.disk import reading
from engine.progress import Progress
from engine.tar.compression import plain_tar
from engine.tar.contents import ContentReader, Found, compare, require_all
from engine.tar.digest import HashingCopier
from engine.tar.file_writer import Digests, Write
from engine.tar.manifest import MANIFEST_NAME, Manifest
from errors.engine_tar import EngineNotFound


def verify(path: Path, *, progress: Progress | None = None) -> Manifest:
    """The manifest of the engine directory or tar ``path``, of which every byte is as it was packed.

    Raises what ``load`` or ``unpack`` would, and UnexpectedEngineFile for a file the manifest does not
    list. Without a manifest only the tar's own structure can be checked.
    """
    with reading(path):
        if not path.exists():
            raise EngineNotFound(place=path, reason="does not exist")
    return _verify_directory(path, progress) if path.is_dir() else _verify_tar(path, progress)


def _verify_tar(path: Path, progress: Progress | None) -> Manifest:
    with reading(path):
        file = path.open("rb")
    with file:
        tar = plain_tar(file, str(path), os.fstat(file.fileno()).st_size)
        return ContentReader(tar, str(path), _Nowhere(), what="verifying", progress=progress).read_all()


class _Nowhere:
    """See ``engine.tar.contents.Files``: they are read to be hashed alone."""

    def write(self, name: str, content: memoryview) -> None:
        pass

    @contextmanager
    def create(self, name: str, size_bytes: int) -> Iterator[Write]:
        yield _ignore


def _verify_directory(path: Path, progress: Progress | None) -> Manifest:
    manifest = load(path).manifest
    if not (path / MANIFEST_NAME).exists():
        return manifest
    done_bytes = 0

    def read(buffer: memoryview) -> int:
        nonlocal done_bytes
        count = file.readinto(buffer)
        done_bytes += count
        if progress:
            progress(done_bytes, manifest.size_bytes, "verifying")
        return count

    digests: dict[str, tuple[int, Digests]] = {}
    with HashingCopier() as copier:
        for name, size_bytes in file_sizes(path):
            with reading(path / name), (path / name).open("rb", buffering=0) as file:
                digests[name] = size_bytes, copier.copy_file(read, _ignore, size_bytes)
        found = {
            name: Found(size_bytes, digest.result()[0]) for name, (size_bytes, digest) in digests.items()
        }
    compare(manifest, found, str(path))
    require_all(manifest, found, str(path))
    return manifest


def _ignore(chunk: memoryview) -> None:
    pass
