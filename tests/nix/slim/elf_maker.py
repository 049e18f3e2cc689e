"""Shared libraries with device code, made by hand: small, and laid out as compilers and linkers do it."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

PTX, ELF, LTO_IR = 1, 2, 8
BASE, ARCHITECTURE, FAMILY = 0, 0x100000, 0x200000
LZ4, ZSTD = 0x2000, 0x8000
LINUX_64_BIT = 0x11

#: Addresses are not offsets: a reader that takes one for the other must fail.
ADDRESS_OF_FILE_START = 0x40_0000

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_STARTS = {0: b"\x7fELF", LZ4: b"\xa2\x7fELF", ZSTD: b"\x28\xb5\x2f\xfd"}
_DATA, _CODE, _RELA_FLAGS = 0x2, 0x6, 0x2


@dataclass(frozen=True)
class Image:
    """One entry of a container; what is given beside kind and architecture overrides what would be right."""

    kind: int
    sm: int
    variant: int = BASE
    compression: int = 0
    payload: bytes = b"code of a kernel"
    name: bytes = b""
    extra_header: bytes = b""
    version: int = 0x0101
    flags: int | None = None

    def packed(self) -> bytes:
        start = _STARTS[self.compression] if self.kind == ELF else b""
        payload = start + self.payload
        padded = payload + bytes(-len(payload) % 8)
        flags = LINUX_64_BIT | self.variant | self.compression if self.flags is None else self.flags
        name_at = 64 + len(self.extra_header) if self.name else 0
        tail = self.extra_header + self.name
        tail += bytes(-len(tail) % 8)
        unpadded = len(payload) if self.compression else 0
        header = struct.pack(
            "<HHIQIIHHIIIQQQ", self.kind, self.version, 64 + len(tail), len(padded), unpadded,
            64 if self.extra_header else 0, 8, 1, self.sm, name_at, len(self.name), flags, 0, 0,
        )  # fmt: skip
        return header + tail + padded


def container(*images: Image) -> bytes:
    """Return a container of the images, with its header."""
    entries = b"".join(image.packed() for image in images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@dataclass
class LibraryMaker:
    """A maker of a library: collects its contents, which `made` lays out.

    `resources` alternate with `resource_table` in one section, as CASK does it; `registered` says whether
    wrappers point at the containers; `section_types` gives a section another type and other flags.
    """

    containers: Sequence[bytes] = ()
    relocatable: Sequence[bytes] = ()
    resources: Sequence[bytes] = ()
    resource_table: bytes = b"\x10\0\0\0 a table, not a container"
    resources_first: bool = False
    in_rodata: bytes = b""
    registered: bool = True
    type: int = 3
    machine: int = 62
    section_types: dict[str, tuple[int, int]] = field(default_factory=dict)
    extra_sections: dict[str, bytes] = field(default_factory=dict)
    extra_pointers: dict[int, int] = field(default_factory=dict)

    def made(self) -> bytes:
        text = b"\xcc" * 24 + struct.pack("<I", 0xBA55ED50) + b"\xcc" * 36  # code that mentions the magic
        blobs: list[tuple[str, int, int, bytes]] = [
            (".text", 1, _CODE, text),
            (".rodata", 1, _DATA, self.in_rodata),
        ]
        places = {name: self._place(blobs, name, parts) for name, parts in self._device_sections()}
        pointers = [address for name in (".nv_fatbin", "__nv_relfatbin") for address in places.get(name, [])]
        wrappers = [struct.pack("<IIQQ", 0x466243B1, 1 + n % 2, 0, 0) for n in range(len(pointers))]
        segment = self._place(blobs, ".nvFatBinSegment", wrappers if self.registered else [])
        relocations = dict(zip((place + 8 for place in segment), pointers, strict=False))
        table = self._place(blobs, ".data.rel.ro", [bytes(8)] * 2 * len(places.get(".cask_resource", [])))
        relocations |= dict(zip(table, places.get(".cask_resource", []), strict=False)) | self.extra_pointers
        packed = b"".join(struct.pack("<QQQ", place, 8, address) for place, address in relocations.items())
        blobs.append((".rela.dyn", 4, _RELA_FLAGS, packed))
        blobs += [(name, 1, _DATA, content) for name, content in self.extra_sections.items()]
        return self._laid_out(blobs)

    def _device_sections(self) -> list[tuple[str, list[bytes]]]:
        resources = [part for resource in self.resources for part in (self.resource_table, resource)]
        found = [
            ("__nv_relfatbin", list(self.relocatable)),
            (".nv_fatbin", list(self.containers)),
            (".cask_resource", resources),
        ]
        found.sort(key=lambda pair: self.resources_first and pair[0] != ".cask_resource")
        return [(name, parts) for name, parts in found if parts]

    def _place(
        self, blobs: list[tuple[str, int, int, bytes]], name: str, parts: Sequence[bytes]
    ) -> list[int]:
        """Add a section of the parts, each at a multiple of 8. Return their addresses."""
        if not parts:
            return []
        start = _padded_end(blobs)
        addresses, content = [], b""
        for part in parts:
            addresses.append(ADDRESS_OF_FILE_START + start + len(content))
            content += part + bytes(-len(part) % 8)
        blobs.append((name, 1, _DATA, content))
        return addresses

    def _laid_out(self, blobs: list[tuple[str, int, int, bytes]]) -> bytes:
        names = b"\0" + b"".join(name.encode() + b"\0" for name, *_ in blobs) + b".shstrtab\0"
        blobs = [*blobs, (".shstrtab", 3, 0, names)]
        content, headers = bytes(_ELF_HEADER.size), [bytes(_SECTION_HEADER.size)]
        for name, kind, flags, blob in blobs:
            content += bytes(-len(content) % 8)
            name_at = names.index(b"\0" + name.encode() + b"\0") + 1
            kind, flags = self.section_types.get(name, (kind, flags))
            address = ADDRESS_OF_FILE_START + len(content)
            headers.append(
                _SECTION_HEADER.pack(name_at, kind, flags, address, len(content), len(blob), 0, 0, 8, 0)
            )
            content += blob
        content += bytes(-len(content) % 8)
        header = _ELF_HEADER.pack(
            b"\x7fELF\x02\x01\x01" + bytes(9), self.type, self.machine, 1, 0, 0, len(content), 0,
            _ELF_HEADER.size, 56, 0, _SECTION_HEADER.size, len(headers), len(headers) - 1,
        )  # fmt: skip
        return header + content[len(header) :] + b"".join(headers)


def _padded_end(blobs: Sequence[tuple[str, int, int, bytes]]) -> int:
    end = _ELF_HEADER.size
    for *_, blob in blobs:
        end += -end % 8 + len(blob)
    return end + -end % 8


def library(*containers: bytes) -> bytes:
    return LibraryMaker(containers=containers).made()
