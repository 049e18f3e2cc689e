"""Remove debug information from every shared library and program under a folder.

The sections that only debuggers read (``.debug_*``, and ``.symtab`` with its names) become zeros, which
compress to nothing, and are marked as having no content (``SHT_NOBITS``), as in a file whose debug
information was moved elsewhere. No offset, no length and nothing that is loaded changes. Only 64-bit
little-endian programs and shared libraries are touched. Standard library only.
"""

from __future__ import annotations

import argparse
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_LINKED_TYPES = (2, 3)  # program, shared library
_NOBITS = 8
_ALLOCATED = 2
_TYPE_AT = 4
_NAMES = (b".debug_", b".zdebug_", b".symtab\0", b".strtab\0")
"""What they begin with. ``.dynsym`` and ``.dynstr``, by which libraries find each other, are loaded."""
_LONGEST_NAME = max(map(len, _NAMES))
_WINDOW = 1 << 20


class Section(NamedTuple):
    """A section to remove: offsets of its header and content, and its size in bytes."""

    header: int
    offset: int
    size: int


def debug_sections(data: bytes | mmap.mmap) -> Iterator[Section]:
    """The debug sections of a linked ELF file; none for any other file."""
    if data[: len(_IDENT)] != _IDENT or len(data) < _HEADER.size:
        return
    _, kind, _, _, _, _, table, _, _, _, _, entry_bytes, count, names_index = _HEADER.unpack_from(data)
    headers = data[table : table + count * _SECTION.size]
    if kind not in _LINKED_TYPES or entry_bytes != _SECTION.size or len(headers) < count * entry_bytes:
        return
    sections = list(_SECTION.iter_unpack(headers))
    if names_index >= count:
        return
    _, _, _, _, names_at, names_bytes, *_ = sections[names_index]
    names = data[names_at : names_at + names_bytes]
    for index, (name, kind, flags, _, offset, size, *_) in enumerate(sections):
        has_content = kind != _NOBITS and offset + size <= len(data)
        if index == names_index or flags & _ALLOCATED or not has_content:
            continue
        if names[name : name + _LONGEST_NAME].startswith(_NAMES):
            yield Section(table + index * _SECTION.size, offset, size)


def drop_debug(path: Path) -> int:
    """Remove them from one file, in place; returns their size in bytes."""
    if path.stat().st_size < _HEADER.size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = list(debug_sections(data))
    if not sections:
        return 0
    with path.open("r+b") as changed:
        for section in sections:
            changed.seek(section.header + _TYPE_AT)
            changed.write(struct.pack("<I", _NOBITS))
            changed.seek(section.offset)
            for start in range(0, section.size, _WINDOW):
                changed.write(bytes(min(_WINDOW, section.size - start)))
    return sum(section.size for section in sections)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    dropped = [size for size in map(drop_debug, files) if size]
    print(f"{sum(dropped) / 1e6:,.1f} MB of debug information removed from {len(dropped)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
