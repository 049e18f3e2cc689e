from __future__ import annotations

import pytest
from slim.rule import INTEGRATED_SMS, KNOWN_SMS, Entry, Kind, Variant, needed

KINDS = {"sm": Kind.ELF, "compute": Kind.PTX, "lto": Kind.LTO_IR}


def entry(name: str) -> Entry:
    """Return the entry that nvcc calls `sm_90a`, `compute_80` or `lto_75`."""
    kind, _, target = name.partition("_")
    return Entry(0, 64, KINDS[kind], int(target.rstrip("af")), Variant(target.lstrip("0123456789")))


def name(one: Entry) -> str:
    return f"{next(key for key, kind in KINDS.items() if kind is one.kind)}_{one.sm}{one.variant.value}"


@pytest.mark.parametrize(
    ("sm", "entries", "kept", "why"),
    [
        (86, "sm_80 sm_86 sm_90 compute_90", "sm_86", "the GPU's own machine code"),
        (86, "sm_75 sm_80 sm_89 compute_75", "sm_80", "else the newest of its major number"),
        (89, "sm_80 sm_86 compute_89", "sm_86", "machine code before PTX, however new"),
        (86, "sm_75 compute_70 compute_80 compute_90", "compute_80", "else the newest PTX up to it"),
        (90, "sm_80 sm_89 compute_75", "compute_75", "PTX of an older major number"),
        (80, "sm_75 sm_86 sm_90 compute_86", "", "nothing that runs"),
        (90, "sm_90a sm_80", "sm_90a", "code for this very GPU"),
        (90, "sm_90 sm_90a compute_90a", "sm_90 sm_90a", "the driver chooses between equals"),
        (103, "sm_100a sm_100", "sm_100", "not code for another GPU of the family"),
        (103, "sm_100f sm_120f", "sm_100f", "code for the family"),
        (100, "sm_103f compute_103f", "", "not code for a later GPU of the family"),
        (121, "compute_120a compute_120f", "compute_120f", "PTX for the family"),
        (120, "compute_100f compute_90", "compute_90", "not PTX for another family"),
        (120, "compute_100a", "", "not PTX for another GPU"),
        (120, "sm_100 compute_100", "compute_100", "PTX across major numbers"),
        (89, "sm_80 sm_87", "sm_80", "not a Tegra's code on a card"),
        (87, "sm_80 sm_86 compute_80", "compute_80", "not a card's code on a Tegra"),
        (87, "sm_86 sm_87", "sm_87", "a Tegra's own code"),
        (90, "lto_75 lto_100 sm_80 sm_90 compute_80", "lto_75 sm_90 compute_80", "all one could link"),
        (75, "lto_80 sm_75 compute_70", "sm_75", "not code to link for later GPUs"),
        (86, "", "", "nothing of nothing"),
    ],
)
def test_keeps_what_the_driver_would_take(sm: int, entries: str, kept: str, why: str) -> None:
    assert [name(one) for one in needed([entry(one) for one in entries.split()], sm)] == kept.split(), why


def test_the_architectures_of_our_images_are_known() -> None:
    assert {80, 86, 90} <= KNOWN_SMS
    assert INTEGRATED_SMS < KNOWN_SMS
