"""directory -> engine.tar: equal directories and facts make equal bytes."""

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.disk import reading, require_space, writing
from engine.names import BadName, NameSet, normal_name
from engine.progress import Progress
from engine.staging import is_staged, staged
from engine.tar.archive import BLOCK_BYTES, file_header
from engine.tar.manifest import MANIFEST_NAME, EngineFacts, FileEntry, Manifest, make_manifest, manifest_bytes
from errors.engine_tar import EngineNotFound, EngineNotPackable, TokenizerMissing

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_RECORD_BYTES = 20 * BLOCK_BYTES
_UNKNOWN_SHA256 = "0" * 64
_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class _Source:
    """A file to pack, as it was when the directory was read."""

    path: Path
    size_bytes: int
    mtime_ns: int


def pack(
    directory: Path, facts: EngineFacts, destination: Path, *, progress: Progress | None = None
) -> Manifest:
    """Write every file below ``directory`` to the tar ``destination``, behind a new manifest.

    Symbolic links are followed if they stay inside. An existing ``destination`` is replaced once the new
    one is whole. Raises TokenizerMissing, EngineNotPackable, EngineNotFound, EngineUnreadable,
    NoSpaceLeft, EngineNotWritable; none of them leaves anything behind.
    """
    sources = _collect(directory, destination)
    missing = [name for name in TOKENIZER_FILES if name not in sources]
    if missing:
        raise TokenizerMissing(place=directory, missing=" and ".join(missing))
    with staged(destination) as path:
        require_space(path.parent, sum(source.size_bytes for source in sources.values()))
        with writing(destination):
            tar = path.open("xb", buffering=0)
        with tar:
            return _TarWriter(tar, directory, destination, progress).write(facts, sources)


class _TarWriter:
    def __init__(self, tar: BinaryIO, directory: Path, destination: Path, progress: Progress | None) -> None:
        self._tar = tar
        self._directory = directory
        self._destination = destination
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = 0
        self._buffers = deque(memoryview(bytearray(_BUFFER_BYTES)) for _ in range(2))

    def write(self, facts: EngineFacts, sources: dict[str, _Source]) -> Manifest:
        """Write the tar in one pass, and the manifest again at the end: only then its digests are known."""
        self._total_bytes = sum(source.size_bytes for source in sources.values())
        entries = {
            name: FileEntry(size_bytes=source.size_bytes, sha256=_UNKNOWN_SHA256)
            for name, source in sources.items()
        }
        self._put_file(MANIFEST_NAME, manifest_bytes(make_manifest(facts, entries, str(self._directory))))
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256") as hasher:
            entries = {
                name: FileEntry(size_bytes=source.size_bytes, sha256=self._copy(name, source, hasher))
                for name, source in sorted(sources.items())
            }
        self._put(bytes(2 * BLOCK_BYTES))
        self._put(bytes(-self._tar.tell() % _RECORD_BYTES))
        manifest = make_manifest(facts, entries, str(self._directory))
        self._tar.seek(0)
        self._put_file(MANIFEST_NAME, manifest_bytes(manifest))
        return manifest

    def _copy(self, name: str, source: _Source, hasher: ThreadPoolExecutor) -> str:
        """Write the file ``name`` and return its SHA-256 (hex), computed while it is written and read on."""
        self._put(file_header(name, source.size_bytes))
        sha256 = hashlib.sha256()
        hashed: Future[None] | None = None
        left_bytes = source.size_bytes
        with reading(source.path):
            file = source.path.open("rb", buffering=0)
        with file:
            while left_bytes:
                self._buffers.rotate()
                with reading(source.path):
                    chunk = self._buffers[0][: file.readinto(self._buffers[0][:left_bytes])]
                if not chunk:
                    raise self._changed(name)
                if hashed is not None:
                    hashed.result()  # The other buffer is filled next.
                hashed = hasher.submit(sha256.update, chunk)
                self._put(chunk)
                left_bytes -= len(chunk)
                self._done_bytes += len(chunk)
                if self._progress:
                    self._progress(self._done_bytes, self._total_bytes, "packing")
            with reading(source.path):
                if _state(source.path) != source:
                    raise self._changed(name)
        self._put(bytes(-source.size_bytes % BLOCK_BYTES))
        if hashed is not None:
            hashed.result()
        return sha256.hexdigest()

    def _changed(self, name: str) -> EngineNotPackable:
        return EngineNotPackable(name=name, place=self._directory, reason="changed while it was being packed")

    def _put_file(self, name: str, content: bytes) -> None:
        self._put(file_header(name, len(content)))
        self._put(content)
        self._put(bytes(-len(content) % BLOCK_BYTES))

    def _put(self, content: bytes | memoryview) -> None:
        with writing(self._destination):
            left = memoryview(content)
            while left:
                left = left[self._tar.write(left) :]


def _collect(directory: Path, destination: Path) -> dict[str, _Source]:
    """Return every file to pack by its name in the tar, less an old manifest and the tar itself."""
    with reading(directory):
        if not directory.is_dir():
            raise EngineNotFound(place=directory, reason="is not a directory")
        root = directory.resolve()
    sources: dict[str, _Source] = {}
    names = NameSet()
    names.add(MANIFEST_NAME)
    for path in _files(directory, root, (root,)):
        name = path.relative_to(directory).as_posix()
        if name == MANIFEST_NAME or is_staged(path) or path.resolve() == destination.resolve():
            continue
        try:
            if normal_name(name) != name:
                raise BadName("has an unusual name")
            names.add(name)
        except BadName as exc:
            raise EngineNotPackable(name=name, place=directory, reason=str(exc)) from exc
        with reading(path):
            sources[name] = _state(path)
    return sources


def _files(folder: Path, root: Path, ancestors: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files below ``folder``; ``ancestors`` are the real folders that contain it."""
    with reading(folder):
        entries = sorted(folder.iterdir())
    for path in entries:
        with reading(path):
            real = Path(os.path.realpath(path, strict=True))
            mode = real.stat().st_mode
        if not real.is_relative_to(root):
            raise _not_packable(path, root, "is a link that leaves the directory")
        if stat.S_ISDIR(mode):
            if real in ancestors:
                raise _not_packable(path, root, "is a link to a folder it lies in")
            yield from _files(path, root, (*ancestors, real))
        elif stat.S_ISREG(mode):
            yield path
        else:
            raise _not_packable(path, root, "is neither a file nor a folder")


def _not_packable(path: Path, root: Path, reason: str) -> EngineNotPackable:
    return EngineNotPackable(name=path.name, place=root, reason=reason)


def _state(path: Path) -> _Source:
    status = path.stat()
    return _Source(path, status.st_size, status.st_mtime_ns)
