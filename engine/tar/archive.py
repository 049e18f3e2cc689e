"""The tar format as an engine uses it: plain files, read strictly from a stream and in bounded memory.

``tarfile`` parses the unusual headers; it is not used for more because it takes a damaged header for the
end of the archive, a pax header of any size into memory, lets links through and takes 50 us a header.
"""

import re
import tarfile
from typing import NamedTuple

from engine.names import BadName, NameSet, normal_name
from engine.tar.window import Buffer, ByteStream, Window
from errors.engine_tar import DamagedTar, UnsafeTarMember

BLOCK_BYTES = tarfile.BLOCKSIZE
MAX_MEMBERS = 100_000
MAX_EXTENSION_BYTES = 1 << 20
"""Limit of a pax or GNU long-name header: a thousand times what a name needs."""
MAX_TRAILER_BYTES = 1 << 20
"""Limit of the zeros that fill the last record: tar's default is 10 KiB, and -b rarely makes it more."""

_TRAILER_STEP_BYTES = 64 << 10
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_GNU_LONG_NAME = b"L"
_PAX, _PAX_GLOBAL = b"x", b"g"
_REFUSED_TYPES = {
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a character device",
    b"4": "is a block device",
    b"6": "is a pipe",
    b"K": "is a link",
    b"S": "is a sparse file",
}
LFS_POINTER = b"version https://git-lfs"
"""Beginning of the file that a clone without Git LFS has in place of a large file."""
_OTHER_FORMATS = {
    b"\x28\xb5\x2f\xfd": "compressed with zstd (of compressed tars, gzipped ones alone are read)",
    b"\xfd7zXZ\0": "compressed with xz (of compressed tars, gzipped ones alone are read)",
    b"BZh": "compressed with bzip2 (of compressed tars, gzipped ones alone are read)",
    b"PK\x03\x04": "a zip archive",
    b"GGUF": "a GGUF file, whose name must end in .gguf",
    LFS_POINTER: "a Git LFS pointer (`git lfs pull` gets the file)",
    b"<!doctype": "a web page",
    b"<html": "a web page",
}
"""What users give in place of a tar, by its beginning."""


_PLAIN_FILE, _SPACE = b"0 "
_CHECKSUM = slice(148, 156)
_USUAL_CHECKSUM = re.compile(rb"[0-7]{6}\0 ")
_USUAL_SIZE = re.compile(rb"[0-7]{11}[\0 ]")


class Member(NamedTuple):
    name: str
    size_bytes: int
    kind: bytes = tarfile.REGTYPE
    """Type, as in ``TarInfo.type``."""


class TarReader:
    """The plain files of a tar, in order; anything else than files and folders is refused.

    Raises DamagedTar for what is not a whole tar and UnsafeTarMember for what must not be unpacked.
    ``size_bytes`` of the whole tar, where known, exposes a header that claims more than can follow.
    """

    def __init__(self, stream: ByteStream, place: str, size_bytes: int | None = None) -> None:
        self.offset_bytes = 0
        self._window = Window(stream)
        self._place = place
        self._size_bytes = size_bytes
        self._names = NameSet()
        self._members = 0
        self._member = Member("", 0)
        self._left_bytes = 0
        self._padding_bytes = 0

    def next_file(self) -> Member | None:
        """Read the next file's name and size; None at the tar's end, which has been checked then."""
        self._skip_content()
        while (header := self._next_header()) is not None:
            if (member := self._checked(header)) is not None:
                return member
        self._check_trailer()
        return None

    @property
    def buffer(self) -> Buffer:
        """Buffer of what ``chunk`` or ``content`` returned last; hold it to keep the content."""
        return self._window.buffer

    def chunk(self) -> memoryview:
        """Return some more of the current file's content, up to BUFFER_BYTES; empty at its end."""
        if self._left_bytes == 0:
            return memoryview(b"")
        return self._passed(self._window.take_some(self._left_bytes))

    def content(self) -> memoryview:
        """Return all that is left of the current file, at most BUFFER_BYTES."""
        size_bytes = self._left_bytes
        content = self._passed(self._window.take(size_bytes)) if size_bytes else memoryview(b"")
        if len(content) < size_bytes:
            raise self._truncated(f"in the middle of {self._member.name!r}")
        return content

    def _passed(self, content: memoryview) -> memoryview:
        if not content:
            raise self._truncated(f"in the middle of {self._member.name!r}")
        self.offset_bytes += len(content)
        self._left_bytes -= len(content)
        return content

    def _skip_content(self) -> None:
        while self._left_bytes:
            self.chunk()
        if self._padding_bytes:
            self._read_exactly(self._padding_bytes, f"after {self._member.name!r}")
            self._padding_bytes = 0

    def _next_header(self) -> Member | None:
        """Read the next header, with long names from the extension headers before it filled in."""
        overrides: dict[str, str] = {}
        while True:
            block = self._read_exactly(BLOCK_BYTES, "before its end marker")
            if block == _ZERO_BLOCK:
                if overrides:
                    raise self._damaged("its end marker follows an extension header")
                return None
            header = _usual_header(block) or self._parse_header(block)
            self._members += 1
            if self._members > MAX_MEMBERS:
                raise self._damaged(f"it has more than {MAX_MEMBERS} members")
            if header.kind in (_GNU_LONG_NAME, _PAX, _PAX_GLOBAL):
                overrides.update(self._read_extension(header))
                continue
            if not overrides:
                return header
            size_bytes = self._number(overrides["size"]) if "size" in overrides else header.size_bytes
            return Member(overrides.get("path", header.name), size_bytes, header.kind)

    def _parse_header(self, block: bytes) -> Member:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as exc:
            if self.offset_bytes == BLOCK_BYTES:
                raise self._no_tar(block, "it does not begin as a tar does, so it is no engine.tar") from exc
            at = self.offset_bytes - BLOCK_BYTES
            raise self._damaged(
                f"the header at byte {at} (after {self._member.name!r}) is bad ({exc})"
            ) from exc
        if info.size < 0:
            raise self._damaged(f"{info.name!r} claims {info.size} bytes")
        return Member(info.name, info.size, info.type)

    def _checked(self, header: Member) -> Member | None:
        """Make ``header``'s file the current one, under its normal name. Return None if it is a folder."""
        size_bytes = header.size_bytes
        try:
            name = normal_name(header.name)
            if header.kind in _REFUSED_TYPES:
                raise BadName(_REFUSED_TYPES[header.kind])
            if header.kind == tarfile.DIRTYPE and size_bytes == 0:
                return None
            if header.kind not in tarfile.REGULAR_TYPES or not name:
                raise BadName(f"is not a plain file (type {header.kind!r})")
            self._names.add(name)
        except BadName as exc:
            raise UnsafeTarMember(place=self._place, member=header.name, reason=str(exc)) from exc
        if self._size_bytes is not None and self.offset_bytes + size_bytes > self._size_bytes:
            raise self._damaged(
                f"{name!r} should have {size_bytes} bytes, "
                f"but only {self._size_bytes - self.offset_bytes} follow"
            )
        self._member = Member(name, size_bytes)
        self._left_bytes = size_bytes
        self._padding_bytes = -size_bytes % BLOCK_BYTES
        return self._member

    def _read_extension(self, header: Member) -> dict[str, str]:
        size_bytes = header.size_bytes
        if size_bytes > MAX_EXTENSION_BYTES:
            raise self._damaged(f"the extension header of {header.name!r} claims {size_bytes} bytes")
        content = self._read_exactly(size_bytes, "in an extension header")
        self._read_exactly(-size_bytes % BLOCK_BYTES, "in an extension header")
        if header.kind == _GNU_LONG_NAME:
            return {"path": content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")}
        try:
            records = _pax_records(content)
        except ValueError as exc:
            raise self._damaged(f"the extension header of {header.name!r} is bad ({exc})") from exc
        if any(key.startswith("GNU.sparse") for key in records):
            raise UnsafeTarMember(place=self._place, member=header.name, reason=_REFUSED_TYPES[b"S"])
        overrides = {
            key: value.decode("utf-8", "surrogateescape")
            for key, value in records.items()
            if key in ("path", "size")
        }
        if header.kind == _PAX_GLOBAL and overrides:
            raise self._damaged("a global header gives every member the same name or size")
        return overrides

    def _number(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 20:
            raise self._damaged(f"an extension header gives the size {text[:40]!r}")
        return int(text)

    def _check_trailer(self) -> None:
        """Check the end marker: two zero blocks, and after them only zeros, to fill the last record."""
        if self._read_exactly(BLOCK_BYTES, "in its end marker") != _ZERO_BLOCK:
            raise self._damaged("its end marker is followed by more content")
        trailer_bytes = 0
        while block := self._window.take_some(_TRAILER_STEP_BYTES):
            trailer_bytes += len(block)
            if trailer_bytes > MAX_TRAILER_BYTES or bytes(block).strip(b"\0"):
                raise self._damaged("its end marker is followed by more content")
        self.offset_bytes += trailer_bytes

    def _read_exactly(self, size_bytes: int, where: str) -> bytes:
        content = self._window.take(size_bytes)
        self.offset_bytes += len(content)
        if len(content) < size_bytes:
            if self.offset_bytes < BLOCK_BYTES:
                raise self._no_tar(bytes(content), f"it ends after {self.offset_bytes} bytes")
            raise self._truncated(where)
        return bytes(content)

    def _no_tar(self, beginning: bytes, reason: str) -> DamagedTar:
        written = beginning.lower() if beginning[:1] == b"<" else beginning
        kinds = (kind for start, kind in _OTHER_FORMATS.items() if written.startswith(start))
        kind = next(kinds, None)
        return self._damaged(reason if kind is None else f"it is {kind}")

    def _truncated(self, where: str) -> DamagedTar:
        return self._damaged(f"it ends after {self.offset_bytes} bytes, {where}")

    def _damaged(self, reason: str) -> DamagedTar:
        return DamagedTar(place=self._place, reason=reason)


def _usual_header(block: bytes) -> Member | None:
    """Return a plain file's header as most programs write it; None for ``tarfile`` to judge."""
    if block[156] != _PLAIN_FILE or block[345] or block[257:262] != b"ustar":
        return None
    if not (_USUAL_SIZE.match(block, 124, 136) and _USUAL_CHECKSUM.match(block, 148, 156)):
        return None
    blank = 8 * _SPACE  # They count in place of the checksum itself.
    # The zeros at its end, half of it, add nothing.
    if int(block[148:154], 8) != sum(block.rstrip(b"\0")) - sum(block[_CHECKSUM]) + blank:
        return None
    name = block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return Member(name, int(block[124:135], 8))


def file_header(name: str, size_bytes: int) -> bytes:
    """Return the header block(s) of a plain file, reproducible: no owner, no time, mode 0644.

    They are in GNU format. Unlike pax, busybox also reads its long names and sizes past 8 GiB.
    """
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    info.mode = 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _pax_records(content: bytes) -> dict[str, bytes]:
    """Parse ``"<length> <key>=<value>\\n"``, again and again. Raises ValueError if it is anything else."""
    records: dict[str, bytes] = {}
    start = 0
    while start < len(content):
        digits = content[start : start + 8].partition(b" ")[0]
        end = start + int(digits)
        key, equals, value = content[start + len(digits) + 1 : end].partition(b"=")
        if not equals or not value.endswith(b"\n") or end > len(content):
            raise ValueError("a record that does not end where it says")
        records[key.decode()] = value[:-1]
        start = end
    return records
