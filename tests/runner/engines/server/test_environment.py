"""The environment that the engine server is started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.engines.server.supervisor import EngineCommand


def test_the_engine_finds_its_libraries_where_the_runner_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/engine/lib:/usr/local/nvidia/lib64")
    environment = EngineCommand(sys.executable, "paced", tmp_path, tmp_path / "arrival.json").environment()
    assert environment["LD_LIBRARY_PATH"] == "/opt/engine/lib:/usr/local/nvidia/lib64"
