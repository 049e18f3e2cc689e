"""The entries of a container that a GPU needs, by NVIDIA's rules (FORMAT.md, "What runs where")."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: Architectures that public tools name and document. Any other number is refused: its place is not known.
KNOWN_SMS = frozenset(
    {30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90}
    | {100, 101, 103, 107, 110, 120, 121}
)

#: GPUs built into a Tegra chip. Machine code does not pass between these and others of the same major number.
INTEGRATED_SMS = frozenset((32, 53, 62, 72, 87, 101, 110))


class Kind(Enum):
    """What an entry holds."""

    PTX = 1
    ELF = 2
    LTO_IR = 8


class Variant(Enum):
    """GPUs that an entry's code runs on: all later ones, those of its family, or its own alone."""

    BASE = ""
    FAMILY = "f"
    ARCHITECTURE = "a"


@dataclass(frozen=True)
class Entry:
    """One image in a container.

    `offset` and `size` are bytes in the file, header and payload together. `sm` is the number in `sm_90`.
    """

    offset: int
    size: int
    kind: Kind
    sm: int
    variant: Variant


def runs(entry: Entry, sm: int) -> bool:
    """Tell whether a GPU of architecture `sm` can use the entry, if need be compiled or linked first."""
    if entry.variant is Variant.ARCHITECTURE or entry.sm == sm:
        return entry.sm == sm
    same_family = entry.sm // 10 == sm // 10
    if entry.kind is Kind.ELF:
        return same_family and entry.sm < sm and not {entry.sm, sm} & INTEGRATED_SMS
    return entry.sm < sm and (entry.variant is Variant.BASE or same_family)


def needed(entries: Sequence[Entry], sm: int) -> list[Entry]:
    """Return the entries to keep of one container, in their order; none when nothing in it runs on `sm`.

    The newest of each variant stays (`sm_100` beside `sm_103f`): the driver chooses between them, and has to
    find the same choice as before. Where there is code to link at run time, what the linker wants is not
    known here, so all that it could use stays.
    """
    usable = [entry for entry in entries if runs(entry, sm)]
    if any(entry.kind is Kind.LTO_IR for entry in usable):
        return usable
    best = [entry for entry in usable if entry.kind is Kind.ELF] or usable
    newest = {
        variant: max((one.sm for one in best if one.variant is variant), default=0) for variant in Variant
    }
    return [entry for entry in best if entry.sm == newest[entry.variant]]
