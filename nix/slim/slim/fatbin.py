"""Containers of device code (fatbins) and their entries, read without decompressing anything.

FORMAT.md has their layout, little-endian, and the source for each field.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .elf import NotUnderstood
from .rule import KNOWN_SMS, Entry, Kind, Variant

MAGIC = struct.pack("<I", 0xBA55ED50)
HEADER_SIZE = 16

_CONTAINER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_ENTRY_HEADER_SIZE = 64
_WINDOW = 1 << 20

_IS_64_BIT = 0x1
_LZ4 = 0x2000
_ZSTD = 0x8000
_ARCHITECTURE = 0x100000
_FAMILY = 0x200000
# 0x7E debug, producer, host; 0xF00 optimization; 0x1000 old compression; 0x10000 LTO IR; 0x1000000 SM 100 up.
_KNOWN_FLAGS = 0x1007F | 0xF00 | 0x1000 | _LZ4 | _ZSTD | _ARCHITECTURE | _FAMILY | 0x1000000

_VARIANTS = {0: Variant.BASE, _ARCHITECTURE: Variant.ARCHITECTURE, _FAMILY: Variant.FAMILY}
_KINDS = {kind.value: kind for kind in Kind}

_ELF_MAGIC = b"\x7fELF"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Container:
    """A container in a file: where it starts, and the entries that follow its header back to back."""

    offset: int
    entries: tuple[Entry, ...]

    @property
    def end(self) -> int:
        """The first byte after its last entry."""
        return self.offset + HEADER_SIZE + sum(entry.size for entry in self.entries)


def containers_in(data: mmap.mmap, start: int, end: int) -> Iterator[Container]:
    """Yield the containers of a section that holds nothing else but zeros between them.

    Raises NotUnderstood at the first byte that is neither.
    """
    while (position := _first_set_byte(data, start, end)) < end:
        if position % 8:
            raise NotUnderstood(f"bytes at {position:#x} between containers of device code")
        container = container_at(data, position, end)
        yield container
        start = container.end


def container_at(data: mmap.mmap, offset: int, end: int) -> Container:
    """Return the container at `offset`, which must end by `end`."""
    if offset + HEADER_SIZE > end:
        raise NotUnderstood(f"a container of device code cut off at {offset:#x}")
    magic, version, header_size, size = _CONTAINER.unpack_from(data, offset)
    if (magic, version, header_size) != (MAGIC, 1, HEADER_SIZE):
        found = f"magic {magic.hex()}, version {version}, header size {header_size}"
        raise NotUnderstood(f"device code at {offset:#x} with {found}")
    if size > end - offset - HEADER_SIZE:
        raise NotUnderstood(f"a container of device code at {offset:#x} that is longer than its section")
    start = offset + HEADER_SIZE
    return Container(offset, tuple(_entries(data, start, start + size)))


def _entries(data: mmap.mmap, start: int, end: int) -> Iterator[Entry]:
    names = set()
    offset = start
    while offset < end:
        if offset + _ENTRY_HEADER_SIZE > end:
            raise NotUnderstood(f"an entry of device code cut off at {offset:#x}")
        fields = _ENTRY.unpack_from(data, offset)
        kind, version, header_size, size, unpadded_size, _, _, _, sm, name_at, name_size, flags = fields
        if version != 0x0101 or header_size < _ENTRY_HEADER_SIZE or header_size % 8 or size % 8:
            found = f"version {version:#x}, header size {header_size}, payload size {size}"
            raise NotUnderstood(f"an entry of device code at {offset:#x} with {found}")
        if header_size + size > end - offset or unpadded_size > size or name_at + name_size > header_size:
            raise NotUnderstood(f"an entry of device code at {offset:#x} that is longer than its container")
        payload = data[offset + header_size : offset + header_size + min(size, 8)]
        names.add(data[offset + name_at : offset + name_at + name_size] if name_size else b"")
        entry_kind = _kind(kind, flags, payload, offset)
        yield Entry(offset, header_size + size, entry_kind, _sm(sm, offset), _variant(flags, offset))
        offset += header_size + size
    if len(names) > 1:
        # Seen nowhere. Each name would need an entry of its own, and the driver's choice is not known.
        raise NotUnderstood(f"entries of different names in the container of device code before {start:#x}")


def _kind(kind: int, flags: int, payload: bytes, offset: int) -> Kind:
    if kind not in _KINDS:
        raise NotUnderstood(f"an entry of device code at {offset:#x} of kind {kind}")
    if flags & ~_KNOWN_FLAGS or not flags & _IS_64_BIT:
        raise NotUnderstood(f"an entry of device code at {offset:#x} with flags {flags:#x}")
    if _KINDS[kind] is Kind.ELF and not _looks_like_elf(flags, payload):
        raise NotUnderstood(f"an entry of device code at {offset:#x} with a payload of {payload.hex()}...")
    return _KINDS[kind]


def _looks_like_elf(flags: int, payload: bytes) -> bool:
    if flags & _ZSTD:
        return payload.startswith(_ZSTD_MAGIC)
    if flags & _LZ4:
        return _ELF_MAGIC in payload[1:]  # a token first, then literals
    return payload.startswith(_ELF_MAGIC)


def _sm(sm: int, offset: int) -> int:
    if sm not in KNOWN_SMS:
        raise NotUnderstood(f"an entry of device code at {offset:#x} for an unknown architecture, {sm}")
    return sm


def _variant(flags: int, offset: int) -> Variant:
    marks = flags & (_ARCHITECTURE | _FAMILY)
    if marks not in _VARIANTS:
        raise NotUnderstood(f"an entry of device code at {offset:#x} with flags {flags:#x}")
    return _VARIANTS[marks]


def _first_set_byte(data: mmap.mmap, start: int, end: int) -> int:
    """Return the position of the first byte that is not zero, or `end`."""
    while start < end:
        window = data[start : min(start + _WINDOW, end)]
        rest = window.lstrip(b"\0")
        if rest:
            return start + len(window) - len(rest)
        start += len(window)
    return end
