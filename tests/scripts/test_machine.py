"""What a machine must provide is found, and what it lacks is named with its remedy."""

import ctypes.util
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from scripts import machine


@pytest.mark.parametrize(
    ("system", "libc", "lacks"),
    [
        ("Linux x86_64", "glibc 2.35", ""),
        ("Linux x86_64", "glibc 2.4", "glibc 2.35 or newer was not found; this system has 2.4: use "),
        ("Linux x86_64", "musl 1.2.5", "glibc 2.35 or newer was not found; this system has another C"),
        ("Linux aarch64", "glibc 2.36", "Linux on x86_64 was not found; this is Linux on aarch64"),
        ("Darwin x86_64", "none 0", "Linux on x86_64 was not found; this is Darwin on x86_64"),
    ],
)
def test_a_system_without_triton_is_told_which_one_has_it(
    system: str, libc: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system.split()[0])
    monkeypatch.setattr(platform, "machine", lambda: system.split()[1])
    monkeypatch.setattr(platform, "libc_ver", lambda: tuple(libc.split()))
    monkeypatch.setattr(machine, "libpython_dir", lambda version: Path("/usr/lib"))
    assert [lacks in str(each) for each in machine.missing()] == [True] * bool(lacks)


def test_commands_and_pythons_library_that_are_missing_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "PYTHON_VERSION", "3.11")
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    git, make, library = map(str, machine.missing())
    assert git.startswith(
        "E1008 MissingRequirement: git was not found; install it with `apt-get install git`"
    )
    assert "`dnf install make`" in make
    assert "libpython3.11.so.1.0 of " in library
    assert "`apt-get install libpython3.11`" in library
    (tmp_path / "libpython3.11.so.1.0").touch()
    assert machine.libpython_dir("3.11") == tmp_path
    (tmp_path / "libpython3.11.so.1.0").unlink()
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so")
    assert machine.libpython_dir("3.11") == Path("/usr/lib")


def test_a_driver_that_is_there_means_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")
    nvidia_smi = tmp_path / "nvidia-smi"
    for script, has_gpu in (("echo 'failed: no driver'; exit 9", False), ("echo 'GPU 0: NVIDIA H200'", True)):
        nvidia_smi.write_text(f"#!/bin/sh\n{script}\n")
        nvidia_smi.chmod(0o755)
        assert machine.has_nvidia_gpu(device=tmp_path / "nvidiactl") == has_gpu
    nvidia_smi.unlink()
    (tmp_path / "nvidiactl").touch()
    assert machine.has_nvidia_gpu(device=tmp_path / "nvidiactl")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([], "E1008 MissingRequirement: Python 3.10, 3.11 or 3.12 with its module venv was not found"),
        (["PYTHON=python3.11"], "E1006 InvalidSetting: PYTHON must be the command of a Python 3.10"),
    ],
)
def test_without_a_python_that_can_be_used_make_says_what_to_install(
    setting: list[str], message: str, tmp_path: Path
) -> None:
    for name in ("python3", "python3.11"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    command = ["/usr/bin/env", "-i", f"PATH={tmp_path}", "/usr/bin/make", "setup", *setting]
    done = subprocess.run(command, cwd=SOURCE_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
