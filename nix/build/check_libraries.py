"""Check that every shared library and program under some folders finds the libraries it names.

A library is found if one of the folders has a file of that name: packages load each other's libraries before
they need them. ``--absent`` names libraries of the host machine and of optional parts, which are not checked.
Standard library only.
"""

from __future__ import annotations

import argparse
import fnmatch
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_DYNAMIC_SEGMENT = 2
_LOADABLE_SEGMENT = 1
_NEEDED = 1
_STRING_TABLE = 5


def needed(path: Path) -> list[str]:
    """The sonames that a 64-bit ELF file needs; none for any other file."""
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return []
        file.seek(0)
        data = file.read()
    segments = list(_segments(data))
    dynamic = [segment for segment in segments if segment[0] == _DYNAMIC_SEGMENT]
    if not dynamic:
        return []
    _, offset, _, size = dynamic[0]
    entries = list(struct.iter_unpack("<qQ", data[offset : offset + size - size % 16]))
    table = next((value for tag, value in entries if tag == _STRING_TABLE), None)
    if table is None:
        return []
    strings = _file_offset(segments, table)
    names = (strings + value for tag, value in entries if tag == _NEEDED)
    return [data[start : data.index(b"\0", start)].decode() for start in names]


def _segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset in the file, address and size of each segment."""
    start = int.from_bytes(data[32:40], "little")
    entry_bytes, count = struct.unpack_from("<HH", data, 54)
    for at in range(start, start + entry_bytes * count, entry_bytes or 1):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, at)
        yield kind, offset, address, size


def _file_offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, size in segments:
        if kind == _LOADABLE_SEGMENT and start <= address < start + size:
            return offset + address - start
    return address


def missing(folders: list[Path], absent: list[str]) -> dict[str, list[Path]]:
    """Name of each library that is not found -> the files that need it."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    result = defaultdict(list)
    for path in files:
        if path.is_symlink():
            continue
        for name in needed(path):
            if name not in names and not any(fnmatch.fnmatchcase(name, pattern) for pattern in absent):
                result[name].append(path)
    return dict(result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--absent", nargs="*", default=[], help="patterns of names that are not checked")
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    found = missing(options.folders, options.absent)
    for name, files in sorted(found.items()):
        print(f"{name} is missing; {len(files)} files need it, such as {files[0]}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
