"""The tar format as an engine uses it: plain files, read strictly from a stream and in bounded memory.

``tarfile`` parses the headers; it is not used for more because it takes a damaged header for the end
of the archive, a pax header of any size into memory, and lets links through.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import Protocol

from engine.names import BadName, NameSet, normal_name
from errors.engine_artifact import DamagedTar, UnsafeTarMember

BLOCK_BYTES = tarfile.BLOCKSIZE
MAX_MEMBERS = 100_000
MAX_EXTENSION_BYTES = 1 << 20
"""Of a pax or GNU long-name header: a thousand times what a name needs."""
MAX_TRAILER_BYTES = 1 << 20
"""Of the zeros that fill the last record: tar's default is 10 KiB, its -b option rarely makes it more."""

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


class ByteStream(Protocol):
    """What an engine is read from: an open binary file, a download, standard input."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill some of ``buffer``; the number of bytes written to it, 0 at the end."""


@dataclass(frozen=True)
class Member:
    name: str
    size_bytes: int


class TarReader:
    """The plain files of a tar, in order; anything else than files and folders is refused.

    Raises DamagedTar for what is not a whole tar and UnsafeTarMember for what must not be unpacked.
    ``size_bytes`` of the whole tar, where known, exposes a header that claims more than can follow.
    """

    def __init__(self, stream: ByteStream, place: str, size_bytes: int | None = None) -> None:
        self.offset_bytes = 0
        self._stream = stream
        self._place = place
        self._size_bytes = size_bytes
        self._names = NameSet()
        self._members = 0
        self._member = Member("", 0)
        self._left_bytes = 0
        self._padding_bytes = 0

    def next_file(self) -> Member | None:
        """The next file's name and size; None at the tar's end, which has then been checked."""
        self._skip_content()
        while (info := self._next_header()) is not None:
            if (member := self._checked(info)) is not None:
                return member
        self._check_trailer()
        return None

    def readinto(self, buffer: memoryview) -> int:
        """Read on in the content of the current file; 0 at its end."""
        if self._left_bytes == 0:
            return 0
        wanted = buffer[: self._left_bytes]
        count = self._stream.readinto(wanted) or 0
        if count == 0:
            raise self._truncated(f"in the middle of {self._member.name!r}")
        self.offset_bytes += count
        self._left_bytes -= count
        return count

    def _skip_content(self) -> None:
        scratch = memoryview(bytearray(min(self._left_bytes, 1 << 20)))
        while self.readinto(scratch):
            pass
        self._read_exactly(self._padding_bytes, f"after {self._member.name!r}")
        self._padding_bytes = 0

    def _next_header(self) -> tarfile.TarInfo | None:
        """The next header, with long names from the extension headers before it filled in."""
        overrides: dict[str, str] = {}
        while True:
            block = self._read_exactly(BLOCK_BYTES, "before its end marker")
            if block == _ZERO_BLOCK:
                if overrides:
                    raise self._damaged("its end marker follows an extension header")
                return None
            info = self._parse_header(block)
            self._members += 1
            if self._members > MAX_MEMBERS:
                raise self._damaged(f"it has more than {MAX_MEMBERS} members")
            if info.type in (_GNU_LONG_NAME, _PAX, _PAX_GLOBAL):
                overrides.update(self._read_extension(info))
                continue
            info.name = overrides.get("path", info.name)
            if "size" in overrides:
                info.size = self._number(overrides["size"])
            return info

    def _parse_header(self, block: bytes) -> tarfile.TarInfo:
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as exc:
            if self.offset_bytes == BLOCK_BYTES:
                raise self._damaged("it does not begin with a tar header") from exc
            at = self.offset_bytes - BLOCK_BYTES
            raise self._damaged(
                f"the header at byte {at} (after {self._member.name!r}) is bad ({exc})"
            ) from exc
        if info.size < 0:
            raise self._damaged(f"{info.name!r} claims {info.size} bytes")
        return info

    def _checked(self, info: tarfile.TarInfo) -> Member | None:
        """``info`` as the current file; None if it is a folder, which needs nothing done."""
        try:
            name = normal_name(info.name)
            if info.type in _REFUSED_TYPES:
                raise BadName(_REFUSED_TYPES[info.type])
            if info.isdir() and info.size == 0:
                return None
            if not info.isreg() or not name:
                raise BadName(f"is not a plain file (type {info.type!r})")
            self._names.add(name)
        except BadName as exc:
            raise UnsafeTarMember(place=self._place, member=info.name, reason=str(exc)) from exc
        if self._size_bytes is not None and self.offset_bytes + info.size > self._size_bytes:
            raise self._damaged(
                f"{name!r} should have {info.size} bytes, "
                f"but only {self._size_bytes - self.offset_bytes} follow"
            )
        self._member = Member(name, info.size)
        self._left_bytes = info.size
        self._padding_bytes = -info.size % BLOCK_BYTES
        return self._member

    def _read_extension(self, info: tarfile.TarInfo) -> dict[str, str]:
        if info.size > MAX_EXTENSION_BYTES:
            raise self._damaged(f"the extension header of {info.name!r} claims {info.size} bytes")
        content = self._read_exactly(info.size, "in an extension header")
        self._read_exactly(-info.size % BLOCK_BYTES, "in an extension header")
        if info.type == _GNU_LONG_NAME:
            return {"path": content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")}
        try:
            records = _pax_records(content)
        except ValueError as exc:
            raise self._damaged(f"the extension header of {info.name!r} is bad ({exc})") from exc
        if any(key.startswith("GNU.sparse") for key in records):
            raise UnsafeTarMember(place=self._place, member=info.name, reason=_REFUSED_TYPES[b"S"])
        overrides = {
            key: value.decode("utf-8", "surrogateescape")
            for key, value in records.items()
            if key in ("path", "size")
        }
        if info.type == _PAX_GLOBAL and overrides:
            raise self._damaged("a global header gives every member the same name or size")
        return overrides

    def _number(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 20:
            raise self._damaged(f"an extension header gives the size {text[:40]!r}")
        return int(text)

    def _check_trailer(self) -> None:
        """The end marker is two zero blocks; only zeros may follow, to fill the last record."""
        if self._read_exactly(BLOCK_BYTES, "in its end marker") != _ZERO_BLOCK:
            raise self._damaged("its end marker is followed by more content")
        buffer = memoryview(bytearray(1 << 16))
        trailer_bytes = 0
        while count := self._stream.readinto(buffer) or 0:
            trailer_bytes += count
            if trailer_bytes > MAX_TRAILER_BYTES or bytes(buffer[:count]).strip(b"\0"):
                raise self._damaged("its end marker is followed by more content")
        self.offset_bytes += trailer_bytes

    def _read_exactly(self, size_bytes: int, where: str) -> bytes:
        content = bytearray(size_bytes)
        view = memoryview(content)
        while view:
            count = self._stream.readinto(view) or 0
            if count == 0:
                raise self._truncated(where)
            self.offset_bytes += count
            view = view[count:]
        return bytes(content)

    def _truncated(self, where: str) -> DamagedTar:
        return self._damaged(f"it ends after {self.offset_bytes} bytes, {where}")

    def _damaged(self, reason: str) -> DamagedTar:
        return DamagedTar(place=self._place, reason=reason)


def file_header(name: str, size_bytes: int) -> bytes:
    """The header block(s) of a plain file, the same for everybody: no owner, no time, mode 0644.

    GNU format: unlike pax, busybox, too, reads its long names and sizes past 8 GiB.
    """
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    info.mode = 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")


def _pax_records(content: bytes) -> dict[str, bytes]:
    """``"<length> <key>=<value>\\n"``, again and again; ValueError if it is anything else."""
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
