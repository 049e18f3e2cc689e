"""What device code a shared library holds, and what of it goes.

Where it is looked for:

* `.nv_fatbin` and `__nv_relfatbin` hold containers and nothing else. Whatever registers a container or points
  into these sections must agree about where containers start, or the library is refused.
* `.cask_resource` (cuBLASLt, cuDNN, cuSPARSELt) mixes containers with tables of its own. A container there is
  emptied if nothing in it runs on the GPU, and otherwise stays as it is.
* Containers anywhere else (cuFFT, cuSPARSE, CUPTI) belong to code that picks, compiles or links them by
  tables of its own, which are not understood here: they stay.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .elf import Library, NotUnderstood, Section, open_library, pointers
from .fatbin import MAGIC, Container, container_at, containers_in
from .rule import Entry, Kind, needed

CONTAINER_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
WRAPPER_SECTION = ".nvFatBinSegment"
RESOURCE_SECTION = ".cask_resource"

_WRAPPER = struct.Struct("<IIQQ")
_WRAPPER_MAGIC = 0x466243B1
_POINTER_IN_WRAPPER = 8


@dataclass(frozen=True)
class Cut:
    """A container that gets smaller, and the entries that stay in it."""

    container: Container
    keep: tuple[Entry, ...]


@dataclass(frozen=True)
class Survey:
    """What slimming a library to one architecture means; sizes in bytes.

    `empty` counts containers in which nothing runs on that architecture, `compiled` those whose code is PTX,
    compiled when it is loaded.
    """

    path: Path
    file_size: int
    mtime_ns: int
    containers: int
    empty: int
    compiled: int
    kept: int
    dropped: int
    cuts: tuple[Cut, ...]


def survey(path: Path, sm: int) -> Survey | None:
    """Return what the library `path` holds for `sm`, None if it is no library. Only headers are read.

    Raises NotUnderstood, naming the file.
    """
    mtime_ns = path.stat().st_mtime_ns
    with open_library(path) as opened:
        return None if opened is None else _survey(*opened, path, mtime_ns, sm)


def _survey(data: mmap.mmap, library: Library, path: Path, mtime_ns: int, sm: int) -> Survey:
    device_sections = library.loaded(*CONTAINER_SECTIONS, RESOURCE_SECTION)
    _refuse_unknown_sections(library)
    found = pointers(data, library, device_sections) if device_sections else {}
    containers = [
        container
        for section in library.loaded(*CONTAINER_SECTIONS)
        for container in containers_in(data, section.offset, section.end)
    ]
    _check_pointers(data, library, found, containers)
    kept = [(container, needed(container.entries, sm)) for container in containers]
    # A resource goes if its list of entries is empty; else it stays whole.
    kept += [(one, []) for one in _resources(data, library, found) if not needed(one.entries, sm)]
    kept.sort(key=lambda pair: pair[0].offset)
    return Survey(
        path=path,
        file_size=len(data),
        mtime_ns=mtime_ns,
        containers=len(kept),
        empty=sum(not keep for _, keep in kept),
        compiled=sum(bool(keep) and all(entry.kind is Kind.PTX for entry in keep) for _, keep in kept),
        kept=sum(entry.size for _, keep in kept for entry in keep),
        dropped=sum(entry.size for one, keep in kept for entry in one.entries if entry not in keep),
        cuts=tuple(Cut(one, tuple(keep)) for one, keep in kept if len(keep) < len(one.entries)),
    )


def _refuse_unknown_sections(library: Library) -> None:
    known = (*CONTAINER_SECTIONS, WRAPPER_SECTION)
    for section in library.sections:
        of_cuda = section.name.startswith((".nv", "__nv")) and "fatbin" in section.name.lower()
        if section.is_loaded and of_cuda and section.name not in known:
            raise NotUnderstood(f"device code in a section {section.name}")


def _check_pointers(
    data: mmap.mmap, library: Library, found: dict[int, int], containers: Iterable[Container]
) -> None:
    """Refuse a library in which a pointer leads into a container, or a wrapper points at no container."""
    sections = library.loaded(*CONTAINER_SECTIONS)
    starts = {
        section.address_of(container.offset)
        for container in containers
        for section in sections
        if section.offset <= container.offset < section.end
    }
    for address in found.values():
        if address not in starts and any(0 <= address - one.address < one.size for one in sections):
            raise NotUnderstood(f"a pointer to {address:#x}, inside a container of device code")
    for section in library.loaded(WRAPPER_SECTION):
        for place, address in _wrapped(data, section, found):
            if address not in starts:
                raise NotUnderstood(
                    f"a registration at {place:#x} of device code at {address:#x}, where none is"
                )


def _wrapped(data: mmap.mmap, section: Section, found: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the addresses of each wrapper and of the container that it registers."""
    if section.size % _WRAPPER.size:
        raise NotUnderstood(f"{WRAPPER_SECTION} of {section.size} bytes")
    for offset in range(section.offset, section.end, _WRAPPER.size):
        magic, version, in_place, _ = _WRAPPER.unpack_from(data, offset)
        if magic != _WRAPPER_MAGIC or version not in (1, 2):
            raise NotUnderstood(f"a registration at {offset:#x} with magic {magic:#x}, version {version}")
        place = section.address_of(offset)
        yield place, found.get(place + _POINTER_IN_WRAPPER, in_place)


def _resources(data: mmap.mmap, library: Library, found: dict[int, int]) -> Iterator[Container]:
    """Yield CASK's containers: resources that the library points at and that start like a container."""
    for section in library.loaded(RESOURCE_SECTION):
        offsets = {section.offset_of(address) for address in found.values()}
        for offset in sorted(offsets):
            if section.offset <= offset < section.end and data[offset : offset + len(MAGIC)] == MAGIC:
                yield container_at(data, offset, section.end)
