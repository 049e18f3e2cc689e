"""The parts of ELF that the search for device code needs: a library's sections and its relocations' targets.

Only 64-bit little-endian shared libraries and programs are read: in objects and archives device code is input
for a linker, and a cubin is device code alone. Source: the System V ABI, with its supplements for x86-64 and
AArch64.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_RELOCATION = struct.Struct("<QQQ")

_IDENT = b"\x7fELF\x02\x01\x01"  # 64-bit, little-endian, version 1
_LINKED_TYPES = (2, 3)  # program, shared library
_RELATIVE = {62: 8, 183: 1027}  # machine -> type of "address of the image plus addend"
_CUDA_MACHINE = 190

_NO_INDEX_FITS = 0xFFFF
_PROGBITS, _RELA, NOBITS = 1, 4, 8
ALLOCATED = 2


class SlimError(Exception):
    """A sentence for the person who ran the command."""


class NotUnderstood(SlimError):
    """A library holds something this program does not know; it refuses rather than guess."""


@dataclass(frozen=True)
class Section:
    """A section: `header`, `offset` and `size` in the file, `address` in memory, bytes all."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    header: int
    has_section_names: bool

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def is_loaded(self) -> bool:
        """True if its bytes in the file become memory; in a file of debug information alone they don't."""
        return self.type == _PROGBITS and bool(self.flags & ALLOCATED)

    def address_of(self, offset: int) -> int:
        return offset - self.offset + self.address

    def offset_of(self, address: int) -> int:
        return address - self.address + self.offset


@dataclass(frozen=True)
class Library:
    """A linked ELF file."""

    machine: int
    sections: tuple[Section, ...]

    def loaded(self, *names: str) -> list[Section]:
        return [section for section in self.sections if section.name in names and section.is_loaded]


@contextmanager
def open_library(path: Path) -> Iterator[tuple[mmap.mmap, Library] | None]:
    """Provide a file's bytes and the library in them; None if the file is something else.

    Raises NotUnderstood, naming the file, also if one is raised in the with block.
    """
    with path.open("rb") as file:
        if file.read(len(_IDENT)) != _IDENT:
            yield None
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                library = _read_library(data)
                yield None if library is None else (data, library)
            except NotUnderstood as error:
                raise NotUnderstood(f"{path}: {error}") from error


def _read_library(data: mmap.mmap) -> Library | None:
    if len(data) < _HEADER.size:
        return None
    header = _HEADER.unpack_from(data)
    _, kind, machine, _, _, _, table_at, _, _, _, _, entry_size, count, names_index = header
    if kind not in _LINKED_TYPES or machine == _CUDA_MACHINE or not table_at:
        return None
    if entry_size != _SECTION.size:
        raise NotUnderstood(f"section headers of {entry_size} bytes")
    raw = _headers(data, table_at, 1)
    raw = _headers(data, table_at, count or raw[0][5])
    if names_index == _NO_INDEX_FITS:
        names_index = raw[0][6]
    if names_index >= len(raw):
        raise NotUnderstood(f"names of sections in section {names_index} of {len(raw)}")
    names = data[raw[names_index][4] : raw[names_index][4] + raw[names_index][5]]
    sections = (
        _section(header, names, len(data), table_at + index * entry_size, index == names_index)
        for index, header in enumerate(raw)
    )
    return Library(machine, tuple(sections))


def pointers(data: mmap.mmap, library: Library, sections: Iterable[Section]) -> dict[int, int]:
    """Return the addresses in `sections` that the loader writes, by the place where it writes them.

    Packed relocations (RELR) are not read: there the address stands in its place already.
    """
    relative = _RELATIVE.get(library.machine)
    ranges = [(section.address, section.address + section.size) for section in sections]
    found: dict[int, int] = {}
    for table in library.sections:
        if table.type != _RELA:
            continue
        if relative is None:
            raise NotUnderstood(f"device code in a library for machine {library.machine}")
        whole = data[table.offset : table.end - table.size % _RELOCATION.size]
        for place, info, address in _RELOCATION.iter_unpack(whole):
            if info == relative and any(start <= address < end for start, end in ranges):
                found[place] = address
    return found


def _headers(data: mmap.mmap, offset: int, count: int) -> list[tuple[int, ...]]:
    end = offset + count * _SECTION.size
    if end > len(data):
        raise NotUnderstood(f"section headers up to {end:#x} in a file of {len(data):#x} bytes")
    return list(_SECTION.iter_unpack(data[offset:end]))


def _section(
    header: tuple[int, ...], names: bytes, file_size: int, header_at: int, has_section_names: bool
) -> Section:
    name_at, kind, flags, address, offset, size = header[:6]
    name = names[name_at : names.find(b"\0", name_at)].decode("ascii", "replace")
    if kind not in (0, NOBITS) and offset + size > file_size:
        raise NotUnderstood(f"section {name} up to {offset + size:#x} in a file of {file_size:#x} bytes")
    return Section(name, kind, flags, address, offset, size, header_at, has_section_names)
