"""Commands that are started with another Python than ours, such as an old one (Debian 11's ``python3``)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT

COPIED = ("errors", "engine", "scripts", "cli", "perf", "Makefile")
_IS_OLD = "import sys; sys.exit(sys.version_info[:2] not in ((3, 8), (3, 9)))"


def old_pythons() -> list[str]:
    named = [shutil.which(name) for name in ("python3.8", "python3.9")]
    by_pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.[89].*/bin/python")))
    found = [each for each in (*named, *by_pyenv) if each is not None]
    return [
        each for each in found if subprocess.run([each, "-c", _IS_OLD], capture_output=True).returncode == 0
    ]


@pytest.fixture(scope="module", params=old_pythons() or [None])
def old_python(request: pytest.FixtureRequest) -> str:
    if request.param is None:
        pytest.skip("no Python 3.8 or 3.9 is here; ruff's rule FA102 checks the same modules")
    return str(request.param)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout without ``.venv``."""
    root = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        source = SOURCE_ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
    return root


@pytest.mark.parametrize("command", ["-m cli plan", "scripts/test_perf.py", "scripts/setup_environment.py"])
def test_a_command_tells_in_one_sentence_what_is_missing(
    old_python: str, checkout: Path, command: str
) -> None:
    done = subprocess.run([old_python, *command.split()], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("E1008 MissingRequirement: Python 3.10, 3.11 or 3.12 (this is 3.")
    assert done.stderr.count("\n") == 1


def test_a_checkout_that_is_set_up_goes_on_with_its_own_python(old_python: str) -> None:
    done = subprocess.run(
        [old_python, "-m", "cli", "--version"], cwd=SOURCE_ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cog-triton ")


def test_the_python_that_made_the_environment_updates_it(checkout: Path) -> None:
    maker = checkout / "maker"
    maker.write_text('#!/bin/sh\necho "$PYTHON" "$2"\n')
    maker.chmod(0o755)
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "cog-triton-stamp.json").write_text(json.dumps({"python": str(maker)}))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    command = [sys.executable, "scripts/setup_environment.py", "clients"]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{maker} clients\n", "")
