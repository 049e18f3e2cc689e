"""An engine as a directory: mounted, or unpacked by ``engine.tar.unpack``."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine.disk import reading
from engine.tar.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    make_manifest,
    parse_manifest,
)
from engine.tar.manifestless import MAX_DOCUMENT_BYTES, describe
from errors.engine_tar import (
    EngineFileDamaged,
    EngineFileMissing,
    EngineNotFound,
    EngineUnreadable,
    InvalidManifest,
)


@dataclass(frozen=True)
class Engine:
    path: Path
    """The directory itself."""
    manifest: Manifest
    warnings: tuple[str, ...]
    """What could not be known or verified, a sentence each."""
    lease: object = field(default=None, compare=False, repr=False)
    """Object that keeps an engine in a cache from being removed as long as it lives."""


def load(path: Path) -> Engine:
    """Load the engine in the directory ``path``.

    Its files are checked to exist in their sizes; their content is not read. A directory without a manifest
    is accepted if its files show its kind (``engine.tar.manifestless``). Raises EngineNotFound,
    InvalidManifest, NewerManifest, EngineFileMissing, EngineFileDamaged, EngineUnreadable.
    """
    with reading(path):
        if not path.is_dir():
            raise EngineNotFound(
                place=path, reason="is not a directory" if path.exists() else "does not exist"
            )
        if not any(path.iterdir()):
            raise EngineNotFound(place=path, reason="is empty")
    if os.path.lexists(path / MANIFEST_NAME):
        manifest = read_directory_manifest(path)
        for name, entry in manifest.files.items():
            require_file(path, name, entry)
        return Engine(path, manifest, ())
    with reading(path):
        top_level = {entry.name: entry.stat().st_size for entry in os.scandir(path) if entry.is_file()}
    facts, warnings = describe(top_level, lambda name: _document(path / name), str(path))
    files = {name: FileEntry(size_bytes=size, sha256=None) for name, size in file_sizes(path)}
    return Engine(path, make_manifest(facts, files, str(path)), warnings)


def read_directory_manifest(path: Path) -> Manifest:
    """Read the manifest in the directory ``path``; its files are not checked."""
    manifest_path = path / MANIFEST_NAME
    with reading(manifest_path), manifest_path.open("rb") as file:
        content = file.read(MAX_MANIFEST_BYTES + 1)
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(place=path, reason=f"it has more than {MAX_MANIFEST_BYTES} bytes")
    return parse_manifest(content, str(path), needs_hashes=False)


def file_sizes(path: Path) -> Iterator[tuple[str, int]]:
    """Yield relative posix name and size in bytes of every file below ``path``, less the manifest."""
    for folder, _, names in os.walk(path, onerror=_raise_unreadable):
        for name in names:
            file = Path(folder, name)
            relative = file.relative_to(path).as_posix()
            if relative != MANIFEST_NAME:
                with reading(file):
                    yield relative, file.stat().st_size


def require_file(path: Path, name: str, entry: FileEntry) -> None:
    """Raise unless the engine in ``path`` has this file in its size."""
    file = path / name
    with reading(file):
        try:
            status = file.stat()
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise EngineFileMissing(place=path, name=name) from exc
    if not stat.S_ISREG(status.st_mode):
        raise EngineFileMissing(place=path, name=name)
    if status.st_size != entry.size_bytes:
        raise EngineFileDamaged(
            place=path, name=name, property="bytes", found=status.st_size, expected=entry.size_bytes
        )


def _document(file: Path) -> bytes | None:
    if not file.is_file():
        return None
    with reading(file), file.open("rb") as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1)
    return content if len(content) <= MAX_DOCUMENT_BYTES else None


def _raise_unreadable(error: OSError) -> None:
    raise EngineUnreadable(place=error.filename, reason=error.strerror) from error
