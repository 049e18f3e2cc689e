"""The processors that a process may use are those of its machine, or what its container is limited to."""

import os
from pathlib import Path

import pytest

from engine.machine.processors import usable_processors

ALL = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "count"),
    [("max 100000", ALL), ("50000 100000", 1), ("100000 100000", 1), (f"{ALL * 100_000 + 1} 100000", ALL)],
)
def test_a_containers_limit_counts_in_whole_processors(tmp_path: Path, limit: str, count: int) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(f"{limit}\n")
    assert usable_processors(path) == count


def test_without_a_limit_all_count(tmp_path: Path) -> None:
    assert usable_processors(tmp_path / "none") == ALL
