import itertools
import json
import random
from pathlib import Path

import pytest
from slim.cli import main
from slim.rule import INTEGRATED_SMS, KNOWN_SMS, Entry, Kind, Variant, needed

from tests.nix.slim.elf_maker import ARCHITECTURE, BASE, ELF, FAMILY, PTX, Image, container, library

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
        (103, "sm_100 sm_103f", "sm_100 sm_103f", "the driver chooses between variants"),
        (103, "sm_100f sm_100 sm_103", "sm_100f sm_103", "of each variant the newest"),
        (103, "compute_100 compute_100f compute_90", "compute_100 compute_100f", "also of PTX"),
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
    assert RUNS.keys() <= KNOWN_SMS
    assert INTEGRATED_SMS < KNOWN_SMS
    left_out = Path(__file__).parents[3] / "nix" / "left-out.json"
    assert json.loads(left_out.read_text())["sm"].keys() == set(map(str, RUNS))


#: Targets whose machine code a GPU runs, written out from NVIDIA's tables: nothing here asks the rule.
RUNS: dict[int, set[str]] = {
    80: {"80"},
    86: {"80", "86"},
    89: {"80", "86", "89"},
    90: {"90", "90a"},
    100: {"100", "100a", "100f"},
    103: {"100", "100f", "103", "103a", "103f"},
    120: {"120", "120a", "120f"},
}
#: Targets whose PTX a GPU compiles besides those without a letter up to its own number.
COMPILES: dict[int, set[str]] = {
    90: {"90a"},
    100: {"100a", "100f"},
    103: {"100f", "103a", "103f"},
    120: {"120a", "120f"},
}
TARGETS = sorted({"75", "87", "121", "121a", "121f"}.union(*RUNS.values()))
LETTERS = {BASE: "", ARCHITECTURE: "a", FAMILY: "f"}
VARIANTS = {letter: variant for variant, letter in LETTERS.items()}


def usable(images: list[Image], sm: int) -> list[Image]:
    """Return what a driver of this GPU chooses from: machine code that runs, else PTX that it compiles."""
    machine_code = [each for each in images if each.kind == ELF and target(each) in RUNS[sm]]
    return machine_code or [
        each
        for each in images
        if each.kind == PTX
        and ((each.variant == BASE and each.sm <= sm) or target(each) in COMPILES.get(sm, ()))
    ]


def target(image: Image) -> str:
    return f"{image.sm}{LETTERS[image.variant]}"


def drivers_choices(images: list[Image], sm: int) -> list[Image | None]:
    """Return what a driver of this GPU takes, for every order in which it may prefer targets.

    NVIDIA documents that machine code comes before PTX, and not which of `sm_100`, `sm_100f` and `sm_100a`
    comes first: so each order of letters counts, before the number and after it.
    """
    chosen: list[Image | None] = []
    for order in itertools.permutations(LETTERS):
        letters_first = max(
            usable(images, sm), key=lambda one: (order.index(one.variant), one.sm), default=None
        )
        number_first = max(
            usable(images, sm), key=lambda one: (one.sm, order.index(one.variant)), default=None
        )
        chosen += [letters_first, number_first]
    return chosen


@pytest.mark.parametrize("sm", RUNS)
def test_a_driver_takes_the_same_code_from_a_slimmed_library(tmp_path: Path, sm: int) -> None:
    """300 random containers: none loses what a driver could choose, and none keeps what can't be chosen."""
    rng = random.Random(sm)
    every = list(itertools.product((PTX, ELF), TARGETS))
    groups = [
        [
            Image(
                kind, int(name.rstrip("af")), VARIANTS[name.lstrip("0123456789")], payload=b"%d %d" % (at, n)
            )
            for n, (kind, name) in enumerate(rng.sample(every, rng.randint(1, 9)))
        ]
        for at in range(300)
    ]
    path = tmp_path / "lib.so"
    before = library(*(container(*images) for images in groups))
    path.write_bytes(before)
    assert main(["--sm", str(sm), str(path)]) == 0
    after, end = path.read_bytes(), 0
    for images in groups:
        start = before.index(container(*images), end)
        end = start + len(container(*images))
        left = [image for image in images if image.packed() in after[start:end]]
        names = [f"{image.kind}:{target(image)}" for image in images]
        assert drivers_choices(left, sm) == drivers_choices(images, sm), names
        assert all(image in usable(images, sm) for image in left), names
    assert any(drivers_choices(images, sm)[0] is None for images in groups)
