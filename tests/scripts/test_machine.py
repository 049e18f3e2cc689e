"""What a machine must provide is found, and what it lacks is named.

Stand-ins: shell scripts that answer as Pythons do, because this machine does not have them all.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from errors.settings import InvalidSetting, MissingRequirement
from scripts import machine


def put_python(
    folder: Path,
    name: str,
    version: str,
    *,
    has_venv: bool = True,
    has_library: bool = True,
    kind: str = "CPython",
) -> Path:
    """A command that answers as a Python of that version would."""
    folder.mkdir(exist_ok=True)
    executable = folder / name
    facts = {
        "executable": str(executable),
        "implementation": kind,
        "version": version,
        "has_venv": has_venv,
        "has_library": has_library,
    }
    executable.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(facts)}\nEND\n")
    executable.chmod(0o755)
    return executable


def test_the_python_whose_torch_wheel_has_a_known_hash_is_preferred(tmp_path: Path) -> None:
    for name, version in (("python3", "3.12.1"), ("python3.10", "3.10.13"), ("python3.12", "3.12.1")):
        put_python(tmp_path, name, version)
    assert machine.choose_python("", str(tmp_path)).version == "3.12.1"
    put_python(tmp_path, "python3.11", "3.11.7")
    assert machine.choose_python("", str(tmp_path)).version == "3.11.7"


def test_python3_alone_is_enough(tmp_path: Path) -> None:
    executable = put_python(tmp_path, "python3", "3.10.13")
    assert machine.choose_python("", f"/nowhere::{tmp_path}").executable == str(executable)


def test_a_complete_python_is_taken_before_a_better_one_that_lacks_something(tmp_path: Path) -> None:
    put_python(tmp_path / "1", "python3.11", "3.11.7", has_library=False)
    put_python(tmp_path / "2", "python3.11", "3.11.2", has_venv=False)
    put_python(tmp_path / "3", "python3.10", "3.10.13")
    path = os.pathsep.join(str(tmp_path / name) for name in "123")
    assert machine.choose_python("", path).version == "3.10.13"


def test_what_the_best_python_lacks_is_named_with_the_packages_that_bring_it(tmp_path: Path) -> None:
    put_python(tmp_path, "python3.11", "3.11.2", has_venv=False, has_library=False)
    venv, library = map(str, machine.choose_python("", str(tmp_path)).missing())
    assert venv.startswith("E1008 MissingRequirement: the venv module of ")
    assert "`apt-get install python3.11-venv`" in venv
    assert "libpython3.11.so.1.0" in library
    assert "`apt-get install libpython3.11`" in library
    assert "`dnf install python3.11`" in library


def test_commands_that_are_no_python_for_us_are_passed_over(tmp_path: Path) -> None:
    put_python(tmp_path / "new", "python3", "3.13.0")
    put_python(tmp_path / "pypy", "python3.11", "3.11.9", kind="PyPy")
    shim = put_python(tmp_path / "shim", "python3.12", "3.12.1")
    shim.write_text("#!/bin/sh\necho 'python3.12: command not found' >&2; exit 127\n")
    (tmp_path / "folder" / "python3.10").mkdir(parents=True)
    path = os.pathsep.join(str(tmp_path / name) for name in ("new", "pypy", "shim", "folder"))
    with pytest.raises(
        MissingRequirement, match=r"Python 3\.10, 3\.11 or 3\.12 .*not found; install .*PYTHON="
    ):
        machine.choose_python("", path)


def test_the_python_asked_for_is_used_even_where_a_better_one_is(tmp_path: Path) -> None:
    put_python(tmp_path, "python3.11", "3.11.7")
    asked_for = put_python(tmp_path, "python3.10", "3.10.13")
    assert machine.choose_python(str(asked_for), str(tmp_path)).version == "3.10.13"


def test_a_python_asked_for_that_can_not_be_used_is_an_error_that_names_it(tmp_path: Path) -> None:
    too_new = str(put_python(tmp_path, "python3.13", "3.13.0"))
    for setting in (too_new, "/no/such/python", str(tmp_path)):
        with pytest.raises(InvalidSetting, match=rf"E1006 .*PYTHON must be .*but is '{setting}'"):
            machine.choose_python(setting, str(tmp_path))


def test_inside_a_virtual_environment_the_python_that_made_it_is_described() -> None:
    found = machine.describe(sys.executable)
    assert found is not None
    assert Path(found.executable).resolve() == Path(found.executable)
    assert not Path(found.executable).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
    assert sys.version.startswith(found.version)


@pytest.mark.parametrize(
    ("is_beside_python", "found_by_loader", "has_library"),
    [(True, None, True), (False, "libpython.so.1.0", True), (False, None, False)],
)
def test_the_shared_library_is_looked_for_beside_python_and_then_where_the_loader_looks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_beside_python: bool,
    found_by_loader: str | None,
    has_library: bool,
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: found_by_loader)
    if is_beside_python:
        (tmp_path / "libpython{}.{}.so.1.0".format(*sys.version_info)).touch()
    exec(machine._PROBE, {})
    assert json.loads(capsys.readouterr().out)["has_library"] is has_library


@pytest.mark.parametrize(
    ("system", "architecture", "glibc", "sentence"),
    [
        ("Darwin", "arm64", "", "Linux on x86_64 was not found; this is Darwin on arm64"),
        ("Linux", "aarch64", "2.36", "Linux on x86_64 was not found; this is Linux on aarch64"),
        ("Linux", "x86_64", "2.31", "glibc 2.35 or newer was not found; this system has 2.31"),
        ("Linux", "x86_64", "", "glibc 2.35 or newer was not found; this system has another C library"),
    ],
)
def test_a_system_triton_does_not_run_on_is_told_why(
    system: str, architecture: str, glibc: str, sentence: str
) -> None:
    (error,) = machine.missing_from_system(system, architecture, glibc, os.environ["PATH"])
    assert sentence in str(error)


@pytest.mark.parametrize("glibc", ["2.35", "2.100", "3.0", "2.39.9000"])
def test_a_system_that_has_all_lacks_nothing(glibc: str, tmp_path: Path) -> None:
    for name in ("git", "make"):
        (tmp_path / name).touch(mode=0o755)
    assert machine.missing_from_system("Linux", "x86_64", glibc, str(tmp_path)) == []


def test_each_missing_command_is_named(tmp_path: Path) -> None:
    errors = machine.missing_from_system("Linux", "x86_64", "2.36", str(tmp_path))
    assert [error.facts["what"] for error in errors] == ["git", "make"]


def test_a_driver_that_is_there_means_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(
        '#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t reach the driver"\nexit 9\n'
    )
    nvidia_smi.chmod(0o755)
    assert not machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")
    nvidia_smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    assert machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")
    (tmp_path / "nvidiactl").touch()
    nvidia_smi.unlink()
    assert machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")
