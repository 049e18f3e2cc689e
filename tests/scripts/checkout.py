"""A checkout to set up, with a stand-in of Python: a shell script that answers as Python, venv and pip would
and writes down what it was asked. The real installation takes minutes and is what every run of the suite has
behind it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

FAKE_PYTHON = """#!/bin/sh
asked="$* index=$PIP_INDEX_URL"
if [ -e {folder}/refuse ] && echo "$asked" | grep -q -f {folder}/refuse; then
    echo "$asked" >> {folder}/calls
    cat {folder}/answer
    exit 1
fi
case "$*" in
-c*)
    echo '{{"executable": "{folder}/python3.11", "implementation": "CPython", "version": "3.11.7",
        "has_venv": true, "has_library": true}}'
    exit ;;
*"-m venv"*)
    rm -rf "$4"
    mkdir -p "$4/bin" "$4/lib/python3.11/site-packages"
    cp "$0" "$4/bin/python" ;;
esac
echo "$asked" >> {folder}/calls
"""


def put_fake_python(folder: Path) -> None:
    python = folder / "python3.11"
    python.write_text(FAKE_PYTHON.format(folder=folder))
    python.chmod(0o755)


class Checkout:
    """A copy of what the set-up reads, and the Python it is given."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root, self.tools = root, tools
        shutil.copytree(ROOT / "requirements", root / "requirements")
        shutil.copy(ROOT / "pyproject.toml", root)
        (root / ".cache").mkdir()
        put_fake_python(tools)

    def calls(self) -> list[str]:
        """What Python was asked since the last time."""
        calls = self.tools / "calls"
        lines = calls.read_text().replace(str(self.root), "").splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return lines

    def refuse(self, pattern: str, answer: str) -> None:
        """From now on commands that match fail with ``answer``; none do if ``pattern`` is ""."""
        (self.tools / "answer").write_text(answer + "\n")
        (self.tools / "refuse").write_text(pattern + "\n")
        if not pattern:
            (self.tools / "refuse").unlink()


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if "pip install" in call]
