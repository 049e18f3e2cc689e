"""Any library: the entries of the rule stay, byte for byte, and nothing else in the file changes."""

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from slim.cli import main
from slim.rule import Entry, Kind, Variant, needed

from tests.nix.slim.elf_maker import (
    ARCHITECTURE,
    BASE,
    ELF,
    FAMILY,
    LZ4,
    PTX,
    ZSTD,
    Image,
    LibraryMaker,
    container,
)

SMS = (75, 80, 86, 89, 90, 100, 103, 120)
MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)

VARIANTS = {BASE: Variant.BASE, ARCHITECTURE: Variant.ARCHITECTURE, FAMILY: Variant.FAMILY}

images = st.builds(
    Image,
    kind=st.sampled_from([PTX, ELF]),
    sm=st.sampled_from(SMS),
    variant=st.sampled_from([BASE, BASE, ARCHITECTURE, FAMILY]),
    compression=st.sampled_from([0, LZ4, ZSTD]),
    payload=st.binary(min_size=1, max_size=40),
    extra_header=st.sampled_from([b"", bytes(8), b"--compile-only  "]),
)
groups = st.lists(st.lists(images, max_size=6), max_size=4)


def _kept(images: list[Image], sm: int) -> list[Image]:
    entries = [
        Entry(place, 64, Kind(one.kind), one.sm, VARIANTS[one.variant]) for place, one in enumerate(images)
    ]
    return [images[entry.offset] for entry in needed(entries, sm)]


def _containers(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Start, end of room and entries of each container, found by its magic number alone."""
    start = content.find(MAGIC)
    while start >= 0:
        size = struct.unpack_from("<Q", content, start + 8)[0]
        yield start, start + 16 + size, content[start + 16 : start + 16 + size]
        start = content.find(MAGIC, start + 16 + size)


@settings(deadline=None, max_examples=150)
@given(groups, groups, st.sampled_from(SMS))
def test_what_stays_is_the_rules_choice_and_all_else_is_as_before(
    fat: list[list[Image]], relocatable: list[list[Image]], sm: int
) -> None:
    maker = LibraryMaker(
        containers=[container(*images) for images in fat],
        relocatable=[container(*images) for images in relocatable],
        in_rodata=b"host data \x00 here",
    )
    before = maker.made()
    expected = [_kept(images, sm) for images in [*relocatable, *fat]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lib.so")
        path.write_bytes(before)
        status = main(["--sm", str(sm), folder])
        after = path.read_bytes()
        if any(relocatable + fat) and not any(expected):
            assert (status, after) == (3, before)
            return
        assert status == 0
        assert main(["--check", str(sm), folder]) == 0
    assert len(after) == len(before)
    assert [entries for _, _, entries in _containers(after)] == [
        b"".join(image.packed() for image in images) for images in expected
    ]
    position = 0
    for (start, end, _), (_, new_end, _) in zip(_containers(before), _containers(after), strict=True):
        assert after[position : start + 8] == before[position : start + 8]
        assert not after[new_end:end].strip(b"\0")
        position = end
    assert after[position:] == before[position:]


@settings(deadline=None, max_examples=300)
@given(groups, st.data())
def test_a_damaged_library_is_slimmed_right_or_not_at_all(
    fat: list[list[Image]], data: st.DataObject
) -> None:
    """One changed byte anywhere: never a crash or another length, and what is done passes its check."""
    intact = LibraryMaker(containers=[container(*images) for images in fat]).made()
    at = data.draw(st.integers(0, len(intact) - 1))
    damaged = intact[:at] + bytes([data.draw(st.integers(0, 255))]) + intact[at + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lib.so")
        path.write_bytes(damaged)
        status = main(["--sm", "86", folder])
        after = path.read_bytes()
        assert status in (0, 3)
        assert len(after) == len(damaged)
        if status == 3:
            assert after == damaged
        else:
            assert main(["--check", "86", folder]) == 0
