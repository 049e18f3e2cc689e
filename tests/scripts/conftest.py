"""A checkout to set up, with a stand-in of uv: a shell script that makes folders and records its arguments.

The real installation takes minutes, and every run of the suite has it behind it.
"""

import shutil
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from scripts import environment, machine

_UV = """#!/bin/sh
asked="$* index=$UV_DEFAULT_INDEX"
echo "$asked" >> {folder}/calls
if [ -e {folder}/refuse ] && echo "$asked" | grep -q -f {folder}/refuse; then cat {folder}/answer; exit 1; fi
for last; do :; done
if [ "$1" = venv ]; then rm -rf "$last"; mkdir -p "$last/bin" "$last/lib/python3/site-packages"; fi
"""


class Checkout:
    """A copy of what the set-up reads, and what its uv was asked."""

    def __init__(self, root: Path, uv: Path) -> None:
        self.root, self._uv = root, uv

    def calls(self) -> list[str]:
        """Return what uv was asked since the last time."""
        calls = self._uv.with_name("calls")
        lines = calls.read_text().replace(str(self.root), "").splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines

    def refuse(self, pattern: str, answer: str = "cut off") -> None:
        """Make commands fail with ``answer`` from now on if they match; none if ``pattern`` is empty."""
        self._uv.with_name("answer").write_text(answer + "\n")
        self._uv.with_name("refuse").write_text(pattern or "no command says this")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    uv = tmp_path / "tools" / "uv"
    uv.parent.mkdir()
    uv.write_text(_UV.format(folder=uv.parent))
    uv.chmod(0o755)
    root = tmp_path / "checkout"
    shutil.copytree(SOURCE_ROOT / "requirements", root / "requirements")
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setattr(environment, "find_uv", lambda: str(uv))
    monkeypatch.setattr(environment, "pip_settings", dict)
    monkeypatch.setattr(machine, "PYTHON_VERSION", "3.11")
    monkeypatch.setattr(machine, "missing", list)
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: False)
    monkeypatch.setenv("TORCH", "cpu")
    for name in ("TORCH_CPU_INDEX", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return Checkout(root, uv)
