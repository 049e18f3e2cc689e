"""Remove debug information from a shared library or program.

The sections that only debuggers read (``.debug_*``, and ``.symtab`` with its names) become zeros, which
compress to nothing, and are marked as having no content (``SHT_NOBITS``), as in a file whose debug
information was moved elsewhere. No offset, no length and nothing that is loaded changes.
"""

import struct
from pathlib import Path

from .elf import ALLOCATED, NOBITS, Section, open_library

_PREFIXES = (".debug_", ".zdebug_")
_NAMES = (".symtab", ".strtab")
"""Sections to drop. ``.dynsym`` and ``.dynstr``, by which libraries find each other, are loaded."""
_TYPE_AT = 4
_WINDOW = 1 << 20


def drop_debug(path: Path) -> int:
    """Remove debug information from a file, in place. Return its size in bytes. Raises NotUnderstood."""
    with open_library(path) as opened:
        if opened is None:
            return 0
        _, library = opened
    sections = [one for one in library.sections if _is_for_debuggers(one) and not one.has_section_names]
    if sections:
        with path.open("r+b") as changed:
            for section in sections:
                changed.seek(section.header + _TYPE_AT)
                changed.write(struct.pack("<I", NOBITS))
                changed.seek(section.offset)
                for start in range(0, section.size, _WINDOW):
                    changed.write(bytes(min(_WINDOW, section.size - start)))
    return sum(section.size for section in sections)


def _is_for_debuggers(section: Section) -> bool:
    is_named_so = section.name.startswith(_PREFIXES) or section.name in _NAMES
    return is_named_so and section.type != NOBITS and not section.flags & ALLOCATED
