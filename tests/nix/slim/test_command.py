"""The command on trees of libraries: what it changes, what it leaves, and what it says."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from slim.cli import main
from slim.library import survey
from slim.rewrite import rewrite

from tests.nix.slim.elf_maker import ELF, PTX, Image, LibraryMaker, container, library

FOLDER = Path(__file__).resolve().parents[3] / "nix" / "slim"
PROGBITS, NOBITS = 1, 8
ALLOCATED, EXECUTABLE = 2, 4
FAT = container(Image(ELF, 80), Image(ELF, 86, payload=b"for 86" * 50), Image(PTX, 90))
FOREIGN = container(Image(ELF, 90))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "site-packages"
    (tree / "torch").mkdir(parents=True)
    (tree / "torch" / "libtorch_cuda.so").write_bytes(library(FAT, FOREIGN, FAT))
    return tree


def snapshot(tree: Path) -> dict[str, tuple[bytes, int, int]]:
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns) for path in files}


def numbers(output: str, library_name: str) -> list[int]:
    """containers, empty, compiled, kept, dropped of the library's line in the table."""
    line = next(line for line in output.splitlines() if line.startswith(library_name))
    return [int(cell.replace(",", "")) for cell in line.split()[1:]]


def test_slims_and_then_finds_it_slim(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "86", str(tree)]) == 1
    assert "libtorch_cuda.so has" in capsys.readouterr().err
    assert main(["--sm", "86", str(tree)]) == 0
    kept, dropped = 2 * len(Image(ELF, 86, payload=b"for 86" * 50).packed()), 2 * len(FAT) + len(FOREIGN) - 48
    assert numbers(capsys.readouterr().out, "torch/libtorch_cuda.so") == [3, 1, 0, kept, dropped - kept]
    assert main(["--check", "86", str(tree)]) == 0
    assert main(["--check", "80", str(tree)]) == 1
    file = tree / "torch" / "libtorch_cuda.so"
    before = (file.stat().st_ino, snapshot(tree))
    assert main(["--sm", "86", str(tree)]) == 0
    assert (file.stat().st_ino, snapshot(tree)) == before


def test_same_input_same_output_with_any_number_of_processes(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.so", "b.so", "c.so"):
        (tree / name).write_bytes(library(FAT))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-rp", str(tree), str(copy)], check=True)
    assert main(["--sm", "86", str(tree)]) == 0
    capsys.readouterr()
    assert main(["--sm", "86", "-j", "3", str(copy)]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:6]]
    assert rows == ["a.so", "b.so", "c.so", "torch/libtorch_cuda.so", "total"]
    assert list(snapshot(tree).values()) == list(snapshot(copy).values())


def test_keeps_mode_and_times(tree: Path) -> None:
    file = tree / "torch" / "libtorch_cuda.so"
    file.chmod(0o555)
    os.utime(file, ns=(1_000_000_000, 2_000_000_001))
    assert main(["--sm", "86", str(tree)]) == 0
    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o555, 2_000_000_001)
    assert status.st_size == len(library(FAT, FOREIGN, FAT))


def test_what_is_missing_or_not_understood_stops_all(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(tree)
    assert main(["--sm", "86", str(tree / "nowhere")]) == 3
    assert "nowhere: no such file or folder" in capsys.readouterr().err
    assert main(["--sm", "75", str(tree)]) == 3
    assert "no library here has device code for SM 75" in capsys.readouterr().err
    assert snapshot(tree) == before
    (tree / "strange.so").write_bytes(library(container(Image(32, 86))))
    before = snapshot(tree)
    assert main(["--sm", "86", str(tree)]) == 3
    assert snapshot(tree) == before
    assert "strange.so: an entry of device code at" in capsys.readouterr().err
    assert main(["--check", "86", str(tree)]) == 3


def test_a_wrong_command_line_is_told_at_once(tree: Path) -> None:
    for arguments in (
        ["--sm", "85"],
        ["--sm", "8.6"],
        ["--sm", "86", "-j", "0"],
        ["--sm", "86", "--check", "86"],
        [],
    ):
        with pytest.raises(SystemExit) as caught:
            main([*arguments, str(tree)])
        assert caught.value.code == 2


def test_leaves_alone_what_is_no_library_for_a_gpu(tree: Path) -> None:
    (tree / "empty").touch()
    (tree / "text.so").write_text("INPUT(libfoo.so.1)\n" * 9)
    (tree / "host.so").write_bytes(LibraryMaker().made())
    (tree / "object.o").write_bytes(LibraryMaker(containers=[FAT], type=1).made())
    (tree / "kernel.cubin").write_bytes(LibraryMaker(containers=[FAT], machine=190).made())
    (tree / "libcudadevrt.a").write_bytes(b"!<arch>\n" + LibraryMaker(containers=[FAT], type=1).made())
    (tree / "dangling.so").symlink_to("nowhere.so")
    # Debug information's sections are named and placed like the library's, and their bytes are not there.
    types = dict.fromkeys((".nv_fatbin", ".nvFatBinSegment", ".rodata"), (NOBITS, ALLOCATED))
    debug = LibraryMaker(containers=[FAT], in_rodata=FOREIGN, section_types=types).made()
    (tree / "libtorch_cuda.so.debug").write_bytes(debug.replace(FAT, b"\xab" * len(FAT)))
    before = snapshot(tree)
    assert main(["--sm", "86", str(tree)]) == 0
    after = snapshot(tree)
    assert [path for path in before if before[path] != after[path]] == [
        str(tree / "torch" / "libtorch_cuda.so")
    ]


def test_does_not_reach_through_links_nor_into_code_that_libraries_pick_or_link_themselves(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside.so"
    outside.write_bytes(library(FAT))
    (tree / "link.so").symlink_to(outside)
    hard = tmp_path / "package-cache.so"
    os.link(tree / "torch" / "libtorch_cuda.so", hard)
    picked = LibraryMaker(in_rodata=bytes(16) + FAT + FOREIGN).made()
    (tree / "libcufft.so").write_bytes(picked)
    assert main(["--sm", "86", str(tree)]) == 0
    assert (tree / "link.so").is_symlink()
    assert outside.read_bytes() == library(FAT)
    assert hard.read_bytes() == library(FAT, FOREIGN, FAT)
    assert "libcufft.so" not in capsys.readouterr().out
    assert (tree / "libcufft.so").read_bytes() == picked


def test_of_resources_only_those_for_other_gpus_go(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maker = LibraryMaker(resources=[FOREIGN, FAT, FOREIGN])
    (tree / "libcublasLt.so").write_bytes(maker.made())
    assert main(["--sm", "86", str(tree)]) == 0
    after = (tree / "libcublasLt.so").read_bytes()
    dropped = 2 * (len(FOREIGN) - 16)
    assert numbers(capsys.readouterr().out, "libcublasLt.so") == [2, 2, 0, 0, dropped]
    assert FAT in after
    assert FOREIGN not in after
    assert after.count(maker.resource_table) == 3
    assert main(["--check", "86", str(tree)]) == 0


def test_finds_device_code_in_a_section_that_can_be_run(tree: Path) -> None:
    made = LibraryMaker(
        containers=[FAT], section_types={".nv_fatbin": (PROGBITS, ALLOCATED | EXECUTABLE)}
    ).made()
    (tree / "libodd.so").write_bytes(made)
    assert main(["--sm", "86", str(tree)]) == 0
    assert FAT not in (tree / "libodd.so").read_bytes()


def test_wherever_the_resources_lie_all_that_goes_goes(tree: Path) -> None:
    for first in (False, True):
        maker = LibraryMaker(containers=[FAT, FOREIGN], resources=[FOREIGN, FOREIGN], resources_first=first)
        (tree / "libcublasLt.so").write_bytes(maker.made())
        assert main(["--sm", "86", str(tree)]) == 0
        assert main(["--check", "86", str(tree)]) == 0
        after = (tree / "libcublasLt.so").read_bytes()
        assert after.count(container(Image(ELF, 86, payload=b"for 86" * 50))) == 1
        assert after.count(container()) == 3


def test_a_result_that_is_not_what_was_planned_is_thrown_away(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(tree)
    monkeypatch.setattr("slim.rewrite._moves", lambda cut: iter(()))
    assert main(["--sm", "86", str(tree)]) == 3
    assert "libtorch_cuda.so" in capsys.readouterr().err
    assert snapshot(tree) == before


def test_a_stopped_run_is_seen_and_finished_by_the_next(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tree / "torch" / ".libtorch_cuda.so.slim-unfinished"
    half.write_bytes(library(FAT)[:300])
    assert main(["--check", "86", str(tree)]) == 1
    assert "slim-unfinished is of a run that was stopped" in capsys.readouterr().err
    assert main(["--sm", "86", str(tree)]) == 0
    assert main(["--check", "86", str(tree)]) == 0


def test_a_library_changed_meanwhile_is_left_alone(tree: Path) -> None:
    file = tree / "torch" / "libtorch_cuda.so"
    plan = survey(file, 86)
    assert plan is not None
    file.write_bytes(library(FAT))
    with pytest.raises(Exception, match="changed by someone else"):
        rewrite(plan, 86)
    assert [path.name for path in file.parent.iterdir()] == ["libtorch_cuda.so"]
    assert file.read_bytes() == library(FAT)


def test_a_disk_that_takes_no_file_leaves_all_whole(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "torch" / ".libtorch_cuda.so.slim-unfinished").mkdir()  # its place is taken
    before = snapshot(tree)
    assert main(["--sm", "86", str(tree)]) == 3
    assert "libtorch_cuda.so is left as it was: Is a directory" in capsys.readouterr().err
    assert snapshot(tree) == before


def test_runs_as_a_folder_with_nothing_but_python(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "x3v9-slim"  # as the Nix store names it
    subprocess.run(["cp", "-r", str(FOLDER), str(copy)], check=True)
    command = [sys.executable, "-I", str(copy), "--sm", "86", "-j", "2", str(tree)]
    (tree / "second.so").write_bytes(library(FAT))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert numbers(done.stdout, "total")[:2] == [4, 1]
