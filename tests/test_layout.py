"""The shape of the tree: few entries at the top of the runner, no folder that nobody can overlook."""

import subprocess
from collections import Counter
from pathlib import Path

from engine.machine.root import SOURCE_ROOT

MOST_MODULES = 20
MOST_ENTRIES_OF_RUNNER = 20


def tracked_files() -> list[Path]:
    """Every file of the checkout that git tracks, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=SOURCE_ROOT, capture_output=True, text=True, check=True
    )
    return [Path(name) for name in listed.stdout.split("\0") if name and (SOURCE_ROOT / name).exists()]


def test_no_folder_of_the_product_has_more_than_20_modules() -> None:
    modules = [file for file in tracked_files() if file.suffix == ".py" and file.parts[0] != "tests"]
    counts = Counter(module.parent.as_posix() for module in modules)
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_the_runner_has_few_entries() -> None:
    entries = {file.parts[1] for file in tracked_files() if file.parts[0] == "runner"}
    assert len(entries) <= MOST_ENTRIES_OF_RUNNER, sorted(entries)
