"""What a library needs is read from the file itself, and what is nowhere is told."""

import shutil
import subprocess
from pathlib import Path

import pytest

from nix.build.check_libraries import missing, needed

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="libraries are read by readelf")
_needs_cc = pytest.mark.skipif(shutil.which("gcc") is None, reason="makes libraries with gcc")


def _library(folder: Path, name: str, *needs: str) -> Path:
    path = folder / f"lib{name}.so"
    (folder / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    flags = ["-Wl,--no-as-needed", f"-L{folder}", *(f"-l{each}" for each in needs)]
    command = ["gcc", "-shared", "-fPIC", f"{folder / name}.c", "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run([*command, *flags], check=True)
    return path


@_needs_cc
def test_needed_libraries_are_those_that_were_linked(tmp_path: Path) -> None:
    _library(tmp_path, "lower")
    upper = _library(tmp_path, "upper", "lower", "m")
    assert {"liblower.so", "libm.so.6"} <= set(needed(upper))


@_needs_cc
def test_a_library_that_is_nowhere_is_told_with_who_needs_it(tmp_path: Path) -> None:
    lower = _library(tmp_path, "lower")
    upper = _library(tmp_path, "upper", "lower")
    assert "liblower.so" not in missing([tmp_path], ["libc.so.6"])
    lower.unlink()
    assert missing([tmp_path], ["libc.so.*"]) == {"liblower.so": [upper]}
    assert missing([tmp_path], ["libc.so.*", "liblow*"]) == {}


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text", b"\x7fELF\x02\x01" + b"\0" * 200])
def test_what_is_no_library_needs_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert needed(tmp_path / "file") == []
