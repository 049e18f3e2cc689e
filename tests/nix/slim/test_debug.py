"""Debug information goes, and what is loaded stays as it was."""

import ctypes
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from slim.cli import main
from slim.debug import drop_debug

_needs_cc = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("readelf") is None, reason="makes libraries with gcc"
)
_SOURCE = 'static const char* words[] = {"a", "b"};\nconst char* word(int i) { return words[i]; }\n'


def _library(folder: Path, *flags: str) -> Path:
    (folder / "word.c").write_text(_SOURCE)
    path = folder / "libword.so"
    command = ["gcc", "-shared", "-fPIC", *flags, str(folder / "word.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def _readelf(path: Path, option: str) -> str:
    command = ["readelf", "--wide", option, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _segments(path: Path) -> str:
    return _readelf(path, "--segments").partition("Section to Segment mapping")[0]


@_needs_cc
@pytest.mark.parametrize("flags", [["-g"], ["-g", "-gz=zlib"]])
def test_a_library_without_it_works_and_compresses_better(tmp_path: Path, flags: list[str]) -> None:
    path = _library(tmp_path, *flags)
    whole = path.read_bytes()
    segments = _segments(path)
    assert drop_debug(path) > 0
    slim = path.read_bytes()
    assert len(slim) == len(whole)
    assert len(zlib.compress(slim)) < len(zlib.compress(whole))
    assert _segments(path) == segments
    library = ctypes.CDLL(str(path))
    library.word.restype = ctypes.c_char_p
    assert library.word(1) == b"b"


@_needs_cc
def test_only_debug_sections_change_and_doing_it_again_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _library(tmp_path, "-g")
    before = _readelf(path, "--sections").splitlines()
    assert main(["--sm", "86", "--drop-debug", str(tmp_path)]) == 0
    assert "removed from 1 files" in capsys.readouterr().out
    after = _readelf(path, "--sections").splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert changed
    assert all("NOBITS" in line for line in changed)
    sections = {line.split("]")[1].split()[0].partition("_")[0] for line in changed}
    assert sections == {".debug", ".strtab", ".symtab"}
    once = path.read_bytes()
    assert drop_debug(path) == 0
    assert path.read_bytes() == once


@_needs_cc
def test_what_is_for_a_linker_stays(tmp_path: Path) -> None:
    (tmp_path / "word.c").write_text(_SOURCE)
    path = tmp_path / "word.o"
    subprocess.run(["gcc", "-g", "-c", tmp_path / "word.c", "-o", path], check=True)
    whole = path.read_bytes()
    assert drop_debug(path) == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text" * 100, b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_what_is_no_library_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert drop_debug(path) == 0
    assert path.read_bytes() == content
