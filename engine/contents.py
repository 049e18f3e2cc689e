"""Read a tar from its first byte to its last, hash every file and hold it against the manifest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager

from engine.archive import ByteStream, Member, TarReader
from engine.digest import HashingCopier
from engine.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    make_manifest,
    parse_manifest,
)
from engine.manifestless import DOCUMENTS, MAX_DOCUMENT_BYTES, describe
from engine.progress import Progress
from errors.engine_artifact import EngineFileDamaged, EngineFileMissing, InvalidManifest, UnexpectedEngineFile

Write = Callable[[memoryview], object]
OpenFile = Callable[[Member], AbstractContextManager[Write]]


class ContentReader:
    """Passes every file of a tar to what ``open_file`` gives for it, and knows what it passed.

    ``stream`` and ``size_bytes`` as for TarReader; ``what`` names the work to ``progress``.
    """

    def __init__(
        self,
        stream: ByteStream,
        place: str,
        open_file: OpenFile,
        *,
        what: str,
        size_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.manifest: Manifest | None = None
        self._tar = TarReader(stream, place, size_bytes)
        self._place = place
        self._open_file = open_file
        self._what = what
        self._size_bytes = size_bytes
        self._progress = progress
        self._files: dict[str, FileEntry] = {}
        self._unchecked: deque[tuple[Member, Future[str]]] = deque()
        self._documents: dict[str, bytes] = {}

    def read_all(self) -> Manifest:
        """The manifest, with which every file agrees; for a tar without one, what its files tell.

        Raises the errors of TarReader and ``parse_manifest``; EngineFileMissing, EngineFileDamaged or
        UnexpectedEngineFile where tar and manifest differ; EngineNotFound for a tar of something else.
        """
        with HashingCopier() as copier:
            while (member := self._tar.next_file()) is not None:
                self._take(member, copier)
                self._settle(wait=False)
            self._settle(wait=True)
        if self.manifest is not None:
            compare(self.manifest, self._files, self._place)
            return self.manifest
        sizes = {name: entry.size_bytes for name, entry in self._files.items()}
        facts = describe(sizes, self._documents.get, self._place).facts
        return make_manifest(facts, self._files, self._place)

    def _take(self, member: Member, copier: HashingCopier) -> None:
        limit_bytes = MAX_MANIFEST_BYTES if member.name == MANIFEST_NAME else MAX_DOCUMENT_BYTES
        is_kept = member.name in (MANIFEST_NAME, *DOCUMENTS) and member.size_bytes <= limit_bytes
        kept = bytearray()
        if self.manifest is not None:
            _compare_size(self.manifest, member.name, member.size_bytes, self._place)
        with self._open_file(member) as write:

            def keep_and_write(chunk: memoryview) -> None:
                kept.extend(chunk)
                write(chunk)

            digest = copier.copy(self._read, keep_and_write if is_kept else write, member.size_bytes)
        if member.name == MANIFEST_NAME:
            self._take_manifest(bytes(kept), member.size_bytes)
            return
        self._unchecked.append((member, digest))
        if is_kept:
            self._documents[member.name] = bytes(kept)

    def _take_manifest(self, content: bytes, size_bytes: int) -> None:
        if len(content) != size_bytes:
            raise InvalidManifest(place=self._place, reason=f"its {size_bytes} bytes are too many")
        self.manifest = parse_manifest(content, self._place)

    def _read(self, buffer: memoryview) -> int:
        count = self._tar.readinto(buffer)
        if self._progress:
            self._progress(self._tar.offset_bytes, self._size_bytes, self._what)
        return count

    def _settle(self, *, wait: bool) -> None:
        """Hold the files whose digests are known against the manifest, so that damage shows early."""
        while self._unchecked and (wait or self._unchecked[0][1].done()):
            member, digest = self._unchecked.popleft()
            entry = FileEntry(size_bytes=member.size_bytes, sha256=digest.result())
            self._files[member.name] = entry
            if self.manifest is not None:
                _compare_file(self.manifest, member.name, entry, self._place)


def compare(manifest: Manifest, files: Mapping[str, FileEntry], place: str) -> None:
    """Raise unless ``files`` (hashed) are exactly those that ``manifest`` lists."""
    for name, entry in files.items():
        _compare_file(manifest, name, entry, place)
    for name in manifest.files:
        if name not in files:
            raise EngineFileMissing(place=place, name=name)


def _compare_file(manifest: Manifest, name: str, found: FileEntry, place: str) -> None:
    expected = _compare_size(manifest, name, found.size_bytes, place)
    if found.sha256 != expected.sha256:
        raise EngineFileDamaged(
            place=place, name=name, property="sha256", found=found.sha256, expected=expected.sha256
        )


def _compare_size(manifest: Manifest, name: str, size_bytes: int, place: str) -> FileEntry:
    expected = manifest.files.get(name)
    if expected is None:
        raise UnexpectedEngineFile(place=place, name=name)
    if size_bytes != expected.size_bytes:
        raise EngineFileDamaged(
            place=place, name=name, property="bytes", found=size_bytes, expected=expected.size_bytes
        )
    return expected
