"""Fixtures of the command's tests."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def free_ports() -> list[int]:
    """Eight ports that nothing listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
