"""Read a tar from its first byte to its last, hash every file and compare it with the manifest."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from engine.progress import Progress
from engine.tar.archive import Member, TarReader
from engine.tar.compression import plain_tar
from engine.tar.file_writer import SMALL_BYTES, FileWriter, Write
from engine.tar.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    make_manifest,
    parse_manifest,
)
from engine.tar.manifestless import DOCUMENTS, MAX_DOCUMENT_BYTES, describe
from engine.tar.window import Buffer, ByteStream
from errors.engine_tar import EngineFileDamaged, EngineFileMissing, InvalidManifest, UnexpectedEngineFile


class Files(Protocol):
    """Destination of the files. ``write`` is called from several threads."""

    def write(self, name: str, content: memoryview) -> None:
        """Make a small file."""

    def create(self, name: str, size_bytes: int) -> AbstractContextManager[Write]:
        """Make a file from content that comes in pieces."""


class ContentReader:
    """Reader of a tar (or tar.gz): it stops at the first file, then passes every file on and verifies it.

    ``place`` names the tar in errors; ``size_bytes`` is its size, if known.
    """

    def __init__(self, stream: ByteStream, place: str, size_bytes: int | None = None) -> None:
        tar = plain_tar(stream, place, size_bytes)
        self.size_bytes = tar.size_bytes
        """Size of the plain tar; None if unknown."""
        self.manifest: Manifest | None = None
        """Manifest; None until it has been read. Here it has, if it comes first."""
        self._manifest_text = b""
        self._tar = TarReader(tar, place, tar.size_bytes)
        self._place = place
        self._found: dict[str, FileEntry] = {}
        self._documents: dict[str, bytes] = {}
        self._member = self._tar.next_file()
        if self._member is not None and self._member.name == MANIFEST_NAME:
            self._read_manifest(self._member)

    def read_all(self, files: Files, progress: Progress | None = None) -> Manifest:
        """Pass on all files, verified against the manifest, and return it; without one, return a derived one.

        Raises the errors of TarReader and ``parse_manifest``; EngineFileMissing, EngineFileDamaged or
        UnexpectedEngineFile where tar and manifest differ; EngineNotFound for a tar of something else.
        """

        def report() -> None:
            if progress:
                progress(self._tar.offset_bytes, self.size_bytes, "unpacking")

        with FileWriter(files.write) as writer:
            while self._member is not None:
                self._take(self._member, files, writer, report)
                self._settle(writer, wait=False)
                self._member = self._tar.next_file()
            self._settle(writer, wait=True)
        if self.manifest is not None:
            compare(self.manifest, self._found, self._place)
            return self.manifest
        sizes = {name: found.size_bytes for name, found in self._found.items()}
        facts, _ = describe(sizes, self._documents.get, self._place)
        return make_manifest(facts, self._found, self._place)

    def _take(self, member: Member, files: Files, writer: FileWriter, report: Callable[[], None]) -> None:
        if member.name == MANIFEST_NAME:
            if self.manifest is None:
                self._read_manifest(member)
            files.write(member.name, memoryview(self._manifest_text))
            return
        if self.manifest is not None:
            _compare_size(self.manifest, member.name, member.size_bytes, self._place)
        if member.name in DOCUMENTS and member.size_bytes <= MAX_DOCUMENT_BYTES:
            self._documents[member.name] = content = self._read()
            writer.add(member.name, memoryview(content), None)
        elif member.size_bytes <= SMALL_BYTES:
            content_there = self._tar.content()
            writer.add(member.name, content_there, self._tar.buffer)
        else:

            def chunk() -> tuple[memoryview, Buffer]:
                content = self._tar.chunk()
                report()
                return content, self._tar.buffer

            with files.create(member.name, member.size_bytes) as write:
                writer.copy(member.name, chunk, write)
        report()

    def _read_manifest(self, member: Member) -> None:
        if member.size_bytes > MAX_MANIFEST_BYTES:
            raise InvalidManifest(place=self._place, reason=f"its {member.size_bytes} bytes are too many")
        self._manifest_text = self._read()
        self.manifest = parse_manifest(self._manifest_text, self._place)

    def _read(self) -> bytes:
        content = bytearray()
        while chunk := self._tar.chunk():
            content += chunk
        return bytes(content)

    def _settle(self, writer: FileWriter, *, wait: bool) -> None:
        """Compare the files whose digests are known with the manifest, so that damage shows early."""
        for name, found in writer.finished(wait=wait):
            if self.manifest is not None:
                # NOTE: the manifest's own entry is kept: each of a hundred thousand takes memory.
                self._found[name] = _compare_file(self.manifest, name, found, self._place)
            else:
                self._found[name] = found


def compare(manifest: Manifest, found: Mapping[str, FileEntry], place: str) -> None:
    """Raise unless ``manifest`` lists exactly the files ``found``."""
    for name, file in found.items():
        _compare_file(manifest, name, file, place)
    for name in manifest.files:
        if name not in found:
            raise EngineFileMissing(place=place, name=name)


def _compare_file(manifest: Manifest, name: str, found: FileEntry, place: str) -> FileEntry:
    expected = _compare_size(manifest, name, found.size_bytes, place)
    if expected.sha256 not in (None, found.sha256):
        raise EngineFileDamaged(
            place=place, name=name, property="sha256", found=found.sha256, expected=expected.sha256
        )
    return expected


def _compare_size(manifest: Manifest, name: str, size_bytes: int, place: str) -> FileEntry:
    expected = manifest.files.get(name)
    if expected is None:
        raise UnexpectedEngineFile(place=place, name=name)
    if size_bytes != expected.size_bytes:
        raise EngineFileDamaged(
            place=place, name=name, property="bytes", found=size_bytes, expected=expected.size_bytes
        )
    return expected
