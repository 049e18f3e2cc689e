"""Fixtures of the command's tests."""

from __future__ import annotations

import pytest

from runner.settings import ports as triton_ports


@pytest.fixture
def free_ports() -> list[int]:
    """Eight ports that nothing listens on."""
    return triton_ports.free_ports(8)
