"""What all tests share: property tests try the same examples each time, and leave nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    if shutil.which("mpirun") is not None:
        return
    skipped = pytest.mark.skip(reason="no mpirun (Debian, Ubuntu: apt-get install openmpi-bin)")
    for item in items:
        if item.get_closest_marker("needs_mpirun"):
            item.add_marker(skipped)
