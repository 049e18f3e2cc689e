"""What is not understood is refused, and the sentence says what and where."""

import struct
from pathlib import Path

import pytest
from slim.elf import NotUnderstood
from slim.library import survey

from tests.nix.slim.elf_maker import (
    ADDRESS_OF_FILE_START,
    ARCHITECTURE,
    ELF,
    FAMILY,
    LINUX_64_BIT,
    LTO_IR,
    LZ4,
    PTX,
    ZSTD,
    Image,
    LibraryMaker,
    container,
    library,
)

GOOD = container(Image(ELF, 80), Image(ELF, 86))


def refusal(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(NotUnderstood, match=r"lib\.so: ") as caught:
        survey(path, 86)
    return str(caught.value).partition(": ")[2]


def patched(content: bytes, offset: int, value: bytes) -> bytes:
    return content[:offset] + value + content[offset + len(value) :]


BAD: list[tuple[bytes, str]] = [
    (patched(GOOD, 0, b"\x01\x5a\xe5\x1e"), "magic 015ae51e"),
    (patched(GOOD, 4, b"\2"), "version 2"),
    (patched(GOOD, 6, b"\x18"), "header size 24"),
    (patched(GOOD, 8, b"\xff\xff\xff"), "longer than its section"),
    (patched(GOOD, 8, b"\x10"), "an entry of device code cut off"),
    (patched(GOOD, 8, b"\x50"), "longer than its container"),
    (patched(GOOD, 16 + 4, b"\x44"), "header size 68"),
    (patched(GOOD, 16 + 8, b"\x19"), "payload size 25"),
    (GOOD + b"junk", "a container of device code cut off"),
    (GOOD + b"\0\0\0\0junk", "bytes at"),
    (GOOD + b"junk" * 4, "magic 6a756e6b"),
    (container(Image(4, 86)), "kind 4"),
    (container(Image(ELF, 86, version=0x0102)), "version 0x102"),
    (container(Image(ELF, 88)), "unknown architecture, 88"),
    (container(Image(ELF, 86, flags=LINUX_64_BIT | 0x4000)), "flags 0x4011"),
    (container(Image(ELF, 90, ARCHITECTURE | FAMILY)), "flags 0x300011"),
    (container(Image(ELF, 86, flags=LINUX_64_BIT | ZSTD)), "payload of 7f454c46"),
    (container(Image(ELF, 86, name=b"a.cu"), Image(ELF, 80, name=b"b.cu")), "different names"),
    *((patched(GOOD, 16 + field, b"\xf8\xff\xff\x7f"), "an entry") for field in (4, 8, 16, 36)),
]


def test_refuses_a_container_it_does_not_understand(tmp_path: Path) -> None:
    for bad, says in BAD:
        assert says in refusal(tmp_path, library(bad))


def test_refuses_a_registration_of_what_is_no_container(tmp_path: Path) -> None:
    made = library(GOOD)
    wrong = made.replace(struct.pack("<I", 0x466243B1), b"\0\0\0\0")
    assert "magic 0x0" in refusal(tmp_path, wrong)
    unregistered = LibraryMaker(containers=[GOOD], registered=False)
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x1234, 0)
    unregistered.extra_sections[".nvFatBinSegment"] = wrapper
    assert "0x1234, where none is" in refusal(tmp_path, unregistered.made())


def test_refuses_a_pointer_into_a_container(tmp_path: Path) -> None:
    maker = LibraryMaker(containers=[GOOD])
    start = maker.made().index(GOOD)
    maker.extra_pointers[0x10] = ADDRESS_OF_FILE_START + start + 16
    assert "inside a container" in refusal(tmp_path, maker.made())


def test_refuses_an_unknown_section_an_unknown_machine_and_a_truncated_library(tmp_path: Path) -> None:
    made = LibraryMaker(extra_sections={".nv_fatbin_v2": GOOD}).made()
    assert ".nv_fatbin_v2" in refusal(tmp_path, made)
    assert "machine 243" in refusal(tmp_path, LibraryMaker(containers=[GOOD], machine=243).made())
    whole = library(container(Image(ELF, 86, payload=bytes(2000))))
    for keep in (1000, 70):
        assert "in a file of" in refusal(tmp_path, whole[:keep])


def test_refuses_a_section_that_ends_after_the_file(tmp_path: Path) -> None:
    made = library(GOOD)
    headers = struct.unpack_from("<Q", made, 40)[0]
    rodata = headers + 2 * 64
    assert ".rodata up to" in refusal(tmp_path, patched(made, rodata + 32, struct.pack("<Q", len(made))))


@pytest.mark.parametrize(
    "image",
    [
        Image(ELF, 86, compression=LZ4),
        Image(ELF, 86, compression=ZSTD),
        Image(PTX, 86, compression=LZ4, extra_header=bytes(16)),
        Image(PTX, 86, name=b"kernel.cu", extra_header=bytes(8)),
        Image(ELF, 86, flags=LINUX_64_BIT | 0x1000002),
        Image(LTO_IR, 86, flags=LINUX_64_BIT | ZSTD | 0x10000),
    ],
    ids=["LZ4", "Zstandard", "PTX with options", "a name", "flags of a newer toolkit", "LTO IR"],
)
def test_reads_every_form_seen_in_published_libraries(tmp_path: Path, image: Image) -> None:
    path = tmp_path / "lib.so"
    other = Image(ELF, 75, name=image.name)
    path.write_bytes(library(container(image, other)))
    found = survey(path, 86)
    assert (found.containers, found.kept, found.dropped) == (1, len(image.packed()), len(other.packed()))
