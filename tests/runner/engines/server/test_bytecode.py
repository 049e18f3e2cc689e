"""Libraries that come without bytecode are compiled once, not at each start; others are left alone."""

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from tests.runner.engines.vllm.vllm_engines import LIBRARY, make_python, make_vllm_directory, running
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

PROGRAM = """
import pathlib, subprocess, sys
from runner.engines.server.loading import keep_bytecode
print(keep_bytecode(["absent", "library"], pathlib.Path(sys.argv[1])))
import library.part
subprocess.run([sys.executable, "-c", "import library.other"], check=True)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "library"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "part.py", "other.py"):
        (folder / name).write_text("value = 1\n")
    return folder


def run(library: Path, kept: Path, **environment: str) -> bool:
    """Return whether the bytecode is kept in ``kept``. The child imports another part of the library."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    surroundings["PYTHONPATH"] = f"{SOURCE_ROOT}:{library.parent}"
    program = [sys.executable, "-c", PROGRAM, str(kept)]
    output = subprocess.check_output(program, env={**surroundings, **environment}, cwd="/", text=True)
    return output == "True\n"


def compiled(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.rglob("*.pyc")}


def test_where_python_must_not_write_the_cache_has_it(library: Path, tmp_path: Path) -> None:
    assert run(library, tmp_path / "kept", PYTHONDONTWRITEBYTECODE="1")
    assert compiled(tmp_path / "kept") >= {"__init__", "part", "other"}
    assert compiled(library) == set()


@pytest.mark.parametrize(
    ("has_bytecode", "environment", "written"),
    [
        (False, {}, {"__init__", "part", "other"}),
        (True, {"PYTHONDONTWRITEBYTECODE": "1"}, {"__init__", "part", "other"}),
        (False, {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": "/nowhere"}, set()),
    ],
    ids=["Python may write", "it came with the library", "a prefix is set"],
)
def test_elsewhere_it_stays_where_python_has_it(
    library: Path, tmp_path: Path, has_bytecode: bool, environment: dict[str, str], written: set[str]
) -> None:
    if has_bytecode:
        compileall.compile_dir(library, quiet=1)
    assert not run(library, tmp_path / "kept", **environment)
    assert compiled(library) == written
    assert not (tmp_path / "kept").exists()


def test_an_engine_server_keeps_it_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    bare = shutil.copytree(LIBRARY, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    python = make_python(tmp_path / "python", sys.executable, bare)
    in_core_alone = bare / "vllm" / "v1" / "engine" / "core.py"
    in_core_alone.touch()
    engine = make_vllm_directory(tmp_path / "engine")
    with running(engine, python, engine_cache_dir=str(tmp_path / "cache")):
        kept = tmp_path / "cache" / "bytecode"
        assert {path.parent.name for path in kept.rglob("__init__.*.pyc")} >= {"vllm"}
        wait_until(lambda: list(kept.rglob("engine/core.*.pyc")))
