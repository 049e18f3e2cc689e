"""The wheel alone, in a clean environment and a folder without a checkout: what ``pip install`` gives."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from engine.machine.python import ENGINE_PYTHON_VARIABLE
from engine.machine.root import SOURCE_ROOT
from scripts.environment import find_uv, pip_settings
from tests.test_layout import tracked_files

pytestmark = pytest.mark.slow

_FOLDERS = ("builder", "cli", "engine", "errors", "mock_cog_triton", "perf", "runner", "triton_model_repo")
_REQUIREMENTS = SOURCE_ROOT / "requirements"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout, built = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheel")
    for file in tracked_files():
        if file.parts[0] in (*_FOLDERS, "LICENSE", "README.md", "pyproject.toml", "requirements"):
            (checkout / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(SOURCE_ROOT / file, checkout / file)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", built, checkout], check=True)
    (path,) = built.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment of the wheel with its extra ``serve``, and torch's CPU build."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    constraints = tmp_path_factory.mktemp("constraints") / "constraints.txt"
    constraints.write_text("\n".join(_pins()))
    install = [find_uv(), "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
    command = [*install, "--constraint", constraints, f"{wheel}[serve]"]
    environment = {**os.environ, **pip_settings()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _pins() -> list[str]:
    """List what the locks pin, which the set-up left in the cache; of a package in two, the last one."""
    pins: dict[str, list[str]] = {}
    for lock in ("engine", "torch-cpu", "serving"):
        found: dict[str, list[str]] = {}
        for pin in re.findall(
            r"^([\w.-]+==[^\\\n]+)", (_REQUIREMENTS / f"{lock}.txt").read_text(), re.MULTILINE
        ):
            found.setdefault(pin.partition("==")[0], []).append(pin)
        pins.update(found)
    return [pin for each in pins.values() for pin in each]


def test_it_holds_every_file_of_its_folders_and_no_other(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = {file for file in tracked_files() if file.parts[0] in _FOLDERS}
    assert held == {f"cog_triton/{file}" for file in ours}


def test_its_extra_asks_for_what_the_engine_environment_has(wheel: Path) -> None:
    files = [_REQUIREMENTS / f"{name}.in" for name in ("engine", "torch-cuda")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    with zipfile.ZipFile(wheel) as content:
        (name,) = (each for each in content.namelist() if each.endswith("/METADATA"))
        metadata = content.read(name).decode()
    asked = re.findall(r"^Requires-Dist: (.*) extra == .serve.$", metadata, re.MULTILINE)
    engine = {str(Requirement(line)) for line in lines if line and line[0] not in "#-"}
    extra = {str(Requirement(re.sub(r";$| and$", "", each.strip()).strip())) for each in asked}
    assert extra <= engine
    assert extra >= {each for each in engine if "==" in each}


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_builds_and_serves_the_tiny_model(installed: Path, ports: dict[str, str], tmp_path: Path) -> None:
    before = _files(installed)
    output = _run(installed, ports, tmp_path, "demo")
    assert "status: succeeded" in output
    assert re.search(r"\d+ tokens, \d+ tokens/s", output)
    assert '"chat.completion"' in output
    assert str(SOURCE_ROOT) not in output
    assert "`cog-triton serve`" in output
    assert _files(installed) == before


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_it_measures_each_layer(installed: Path, ports: dict[str, str], tmp_path: Path) -> None:
    output = _run(installed, ports, tmp_path, "doctor", "--perf")
    assert "All checks passed." in output
    assert re.search(r"^\| API server, events +\| +\d", output, re.MULTILINE)
    assert "Slowest: " in output


def _run(installed: Path, ports: dict[str, str], folder: Path, *arguments: str) -> str:
    unset = (ENGINE_PYTHON_VARIABLE, "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    places = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [installed / "bin" / "cog-triton", *arguments],
        cwd=folder,
        env={**kept, **ports, **places},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}
