"""The checkout that the set-up is tried on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import environment
from tests.scripts.checkout import Checkout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    root, tools = tmp_path / "checkout", tmp_path / "tools"
    root.mkdir()
    tools.mkdir()
    made = Checkout(root, tools)
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "REQUIREMENTS", root / "requirements")
    monkeypatch.setattr(environment, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(environment, "LOG", root / ".cache" / "setup.log")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH", "cpu")
    for name in ("PYTHON", "TORCH_CPU_INDEX", "PIP_INDEX_URL", "VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return made
