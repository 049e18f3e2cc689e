import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tar.archive import file_header
from engine.tar.manifest import MANIFEST_NAME, manifest_bytes
from engine.tar.pack import pack
from errors.engine_tar import EngineNotFound, EngineNotPackable, TokenizerMissing
from tests.engine.samples import FACTS, FILES, error_on_full_disk, everything_in, read_files, write_files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "source", FILES)


def test_the_manifest_comes_first_and_then_every_file_by_name(source: Path, tmp_path: Path) -> None:
    manifest = pack(source, FACTS, tmp_path / "engine.tar")
    with tarfile.open(tmp_path / "engine.tar", "r:") as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == [MANIFEST_NAME, *sorted(FILES)]
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime, m.mode) for m in members} == {
            (0, 0, "", "", 0, 0o644)
        }
        stored = tar.extractfile(MANIFEST_NAME)
        assert stored.read() == manifest_bytes(manifest)


def test_equal_directories_make_equal_bytes(source: Path, tmp_path: Path) -> None:
    pack(source, FACTS, tmp_path / "first.tar")
    other = tmp_path / "other"
    for name in sorted(FILES, reverse=True):
        write_files(other, {name: FILES[name]})
        (other / name).chmod(0o600)
        os.utime(other / name, (1, 1))
    pack(other, FACTS, tmp_path / "second.tar")
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()


def test_names_that_no_plain_header_holds_survive_the_tar_command(source: Path, tmp_path: Path) -> None:
    odd = {"ein Füllhorn 🦙.txt": b"x", "/".join(["a" * 90] * 4): b"long"}
    pack(write_files(source, odd), FACTS, tmp_path / "engine.tar")
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", tmp_path / "engine.tar", "-C", tmp_path / "out"], check=True)
    assert read_files(tmp_path / "out") == FILES | odd


def test_a_file_past_8_gib_fits_the_header() -> None:
    info = tarfile.TarInfo.frombuf(file_header("rank0.engine", 40 << 30), "utf-8", "strict")
    assert (info.name, info.size) == ("rank0.engine", 40 << 30)


def test_an_existing_tar_is_replaced_only_by_a_whole_one_with_a_tokenizer(
    source: Path, tmp_path: Path
) -> None:
    destination = tmp_path / "engine.tar"
    destination.write_bytes(b"the one before")
    with pytest.raises(EngineNotFound, match="E1301"):
        pack(tmp_path / "nowhere", FACTS, destination)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).rename(source / "aside")
        with pytest.raises(TokenizerMissing, match=f"lacks {name}"):
            pack(source, FACTS, destination)
        (source / "aside").rename(source / name)
    assert destination.read_bytes() == b"the one before"
    pack(source, FACTS, destination)
    assert destination.read_bytes().startswith(MANIFEST_NAME.encode())


def test_links_are_followed_inside_and_refused_outside(source: Path, tmp_path: Path) -> None:
    (source / "inside.json").symlink_to("config.json")
    (source / "folder").symlink_to("nested")
    manifest = pack(source, FACTS, tmp_path / "engine.tar")
    assert manifest.files["inside.json"] == manifest.files["config.json"]
    assert "folder/deeper/notes.txt" in manifest.files
    (tmp_path / "secret").write_text("secret")
    (source / "outside.json").symlink_to(tmp_path / "secret")
    with pytest.raises(EngineNotPackable, match=r"outside\.json.*leaves the directory"):
        pack(source, FACTS, tmp_path / "second.tar")
    assert not (tmp_path / "second.tar").exists()


SPOILT: dict[str, Callable[[Path], object]] = {
    "a loop": lambda source: (source / "nested" / "loop").symlink_to(".."),
    "a pipe": lambda source: os.mkfifo(source / "pipe"),
    "names that differ in case": lambda source: write_files(source, {"Config.json": b"x"}),
    "a line break": lambda source: write_files(source, {"a\nb": b"x"}),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_no_tar_should_hold_is_refused(source: Path, tmp_path: Path, what: str) -> None:
    SPOILT[what](source)
    with pytest.raises(EngineNotPackable):
        pack(source, FACTS, tmp_path / "out" / "engine.tar")


def test_an_old_manifest_the_tar_itself_and_what_a_killed_packer_left_stay_out(source: Path) -> None:
    write_files(source, {MANIFEST_NAME: b"old", ".engine.tar.cog-triton-staged-00000000": b"half"})
    manifest = pack(source, FACTS, source / "engine.tar")
    assert set(manifest.files) == set(FILES)
    assert set(pack(source, FACTS, source / "engine.tar").files) == set(FILES)
    assert everything_in(source).count("engine.tar") == 1
    assert not any("staged" in name for name in everything_in(source))


def test_a_file_that_changes_meanwhile_is_noticed_and_progress_reaches_its_total(
    source: Path, tmp_path: Path
) -> None:
    calls: list[tuple[int, int | None, str]] = []
    manifest = pack(source, FACTS, tmp_path / "engine.tar", progress=lambda *call: calls.append(call))
    assert calls[-1] == (manifest.size_bytes, manifest.size_bytes, "packing")

    def grow(done_bytes: int, total_bytes: int | None, what: str, /) -> None:
        (source / "model.safetensors").write_bytes(b"changed")

    with pytest.raises(EngineNotPackable, match="changed while it was being packed"):
        pack(source, FACTS, tmp_path / "out" / "engine.tar", progress=grow)
    assert everything_in(tmp_path / "out") == []


def test_a_full_disk_is_a_coded_error_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    code = "from engine.tar.pack import pack; from engine.tar.manifest import EngineFacts\n"
    code += "from pathlib import Path\n"
    code += "pack(Path(sys.argv[1]), EngineFacts(engine_kind='paced'), Path(sys.argv[2]))"
    assert "E1310 NoSpaceLeft" in error_on_full_disk(code, source, tmp_path / "out" / "engine.tar")
    assert everything_in(tmp_path / "out") == []
