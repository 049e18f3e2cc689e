"""Wheels become an environment that runs, that is the same each time, and that nothing sneaks into."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from nix.build import install_wheels
from tests.nix.build.wheels import make_wheel

_PROGRAM = Path(install_wheels.__file__)
_SITE_PACKAGES = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _install(out: Path, *wheels: Path, leave_out: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    names = out.parent / f"{out.name}-wheels"
    names.write_text("".join(f"{wheel}\n" for wheel in wheels))
    command = [sys.executable, str(_PROGRAM), "--out", str(out), "--wheels", str(names)]
    command += [f"--leave-out={pattern}" for pattern in leave_out]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _content(folder: Path) -> Mapping[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_its_python_imports_what_was_installed_and_its_scripts_run(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "greeting",
        {
            "greeting/__init__.py": b"def greet():\n    print('hello from', __name__)\n",
            "greeting-1.0.data/scripts/old-style": b"#!python\nimport greeting; greeting.greet()\n",
            "greeting-1.0.data/data/share/greeting.txt": b"hello",
        },
        entry_points="[console_scripts]\ngreet = greeting:greet\n",
    )
    out = tmp_path / "out"
    assert _install(out, wheel).returncode == 0
    for command in (
        ["bin/greet"],
        ["bin/old-style"],
        ["bin/python", "-c", "import greeting; greeting.greet()"],
    ):
        command[0] = str(out / command[0])
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        assert run.stdout == "hello from greeting\n"
    assert (out / "share" / "greeting.txt").read_text() == "hello"


def test_the_same_wheels_give_the_same_bytes_and_nothing_of_the_installing_python_is_visible(
    tmp_path: Path,
) -> None:
    wheels = [
        make_wheel(tmp_path, name, {f"{name}/module_{i}.py": b"X = {'a', 'b', 'c'}\n" for i in range(20)})
        for name in ("first", "second")
    ]
    out = tmp_path / "out"
    contents = []
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        assert _install(out, *wheels).returncode == 0
        contents.append(_content(out))
    assert contents[0] == contents[1]
    assert sum(name.endswith(".pyc") for name in contents[0]) == 40
    command = [out / "bin" / "python", "-I", "-c", "import first, pytest"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No module named 'pytest'" in run.stderr


def test_byte_code_is_used_whatever_the_sources_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    _install(out, make_wheel(tmp_path, "thing", {"thing.py": b"VALUE = 1\n"}))
    (out / _SITE_PACKAGES / "thing.py").write_text("VALUE = 2\n")
    command = [out / "bin" / "python", "-c", "import thing; print(thing.VALUE)"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"


def test_a_damaged_member_is_refused_by_name(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "bad", {"bad.py": b"1"}, damaged="bad.py")
    run = _install(tmp_path / "out", wheel)
    assert run.returncode == 1
    assert "bad.py is not the file that RECORD names" in run.stderr


@pytest.mark.parametrize("name", ["../escape.py", "/escape.py", "bad-1.0.data/data/../../../escape"])
def test_a_member_that_would_lie_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    run = _install(tmp_path / "out", make_wheel(tmp_path, "bad", {name: b"1"}))
    assert run.returncode == 1
    assert "is no name for a member of a wheel" in run.stderr
    assert not list(tmp_path.rglob("escape*"))


def test_two_wheels_may_share_a_file_that_is_the_same_and_no_other(tmp_path: Path) -> None:
    for content, status in (("", 0), ("x", 1)):
        wheels = [
            make_wheel(tmp_path, name, {"shared/x.py": content.encode() * number})
            for number, name in enumerate(("one", "two"))
        ]
        run = _install(tmp_path / f"out-{status}", *wheels)
        assert run.returncode == status
    assert "both have" in run.stderr
    assert "shared/x.py, and differ" in run.stderr


def test_what_is_left_out_is_not_there_and_counted(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "big", {"big/lib.a": b"x" * 2_000_000, "big/lib.so": b"y"})
    out = tmp_path / "out"
    run = _install(out, wheel, leave_out=("*.a",))
    assert "2.0 MB of them left out" in run.stdout
    assert [path.name for path in (out / _SITE_PACKAGES / "big").iterdir()] == ["lib.so"]


def test_programs_can_be_executed_also_where_the_wheel_forgot_their_mode(tmp_path: Path) -> None:
    program = Path(sys.executable).resolve().read_bytes()
    files = {"tool/program": program, "tool/marked": b"#!/bin/sh\n", "tool/data.bin": b"\x7fELF"}
    out = tmp_path / "out"
    assert (
        _install(out, make_wheel(tmp_path, "tool", files, executable=frozenset({"tool/marked"}))).returncode
        == 0
    )
    modes = {path.name: path.stat().st_mode & 0o777 for path in (out / _SITE_PACKAGES / "tool").iterdir()}
    assert modes == {"program": 0o755, "marked": 0o755, "data.bin": 0o644}
