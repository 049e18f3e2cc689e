"""The environment that the engine server is started with."""

from __future__ import annotations

import pytest

from runner.engines.server.supervisor import engine_environment


def test_the_engine_finds_its_libraries_where_the_runner_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/engine/lib:/usr/local/nvidia/lib64")
    environment = engine_environment("paced")
    assert environment["LD_LIBRARY_PATH"] == "/opt/engine/lib:/usr/local/nvidia/lib64"
