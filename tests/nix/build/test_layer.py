"""A layer's tar is a function of content alone, and holds just what it is told to."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[3] / "nix" / "build" / "layer.sh"
pytestmark = pytest.mark.skipif(shutil.which("pigz") is None, reason="layers are compressed with pigz")


def _make(
    folder: Path, root: Path, store: list[Path], *writable: str, below: tuple[Path, ...] = ()
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "closure").write_text("".join(f"{path}\n" for path in [root, *below, *store]))
    (folder / "below").write_text("".join(f"{path}\n" for path in below))
    attributes = {
        "out": folder / "out",
        "layerName": "test",
        "root": root,
        "closure": folder / "closure",
        "below": folder / "below",
        "writable": " ".join(writable),
        "NIX_BUILD_CORES": "1",
    }
    environment = {**os.environ, **{name: str(value) for name, value in attributes.items()}}
    command = ["bash", "-c", f"set -e -o pipefail; source {_SCRIPT}"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return json.loads((folder / "out" / "layer.json").read_text())


def _root(folder: Path) -> Path:
    (folder / "tmp").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "tool").write_text("#!/bin/sh\n")
    (folder / "bin" / "tool").chmod(0o555)
    (folder / "bin" / "link").symlink_to("tool")
    (folder / "dangling").symlink_to("/nix/store/nothing")
    return folder


def test_digests_and_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    facts = _make(tmp_path / "layer", _root(tmp_path / "root"), [])
    compressed = (tmp_path / "layer" / "out" / "layer.tar.gz").read_bytes()
    tar = gzip.decompress(compressed)
    assert facts["digest"] == f"sha256:{hashlib.sha256(compressed).hexdigest()}"
    assert facts["diff_id"] == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    assert facts["size"] == len(compressed)


def test_times_owners_and_order_of_creation_do_not_matter(tmp_path: Path) -> None:
    first = _root(tmp_path / "first")
    second = tmp_path / "second"
    (second / "bin").mkdir(parents=True)
    (second / "dangling").symlink_to("/nix/store/nothing")
    (second / "bin" / "link").symlink_to("tool")
    (second / "bin" / "tool").write_text("#!/bin/sh\n")
    (second / "bin" / "tool").chmod(0o755)
    (second / "tmp").mkdir()
    os.utime(second / "bin" / "tool", (1, 1))
    assert _make(tmp_path / "a", first, []) == _make(tmp_path / "b", second, [])


def test_members_are_roots_content_and_whole_store_paths(tmp_path: Path) -> None:
    store = tmp_path / "store" / "abc-package"
    (store / "lib").mkdir(parents=True)
    (store / "lib" / "library.so").write_bytes(b"1")
    (store / "link").symlink_to("lib")
    other = tmp_path / "store" / "def-package-of-a-layer-below"
    _make(tmp_path / "layer", _root(tmp_path / "root"), [store], "tmp", below=(other,))
    with tarfile.open(tmp_path / "layer" / "out" / "layer.tar.gz") as tar:
        members = {member.name: member for member in tar}
    inside = str(store).lstrip("/")
    of_root = {"bin", "bin/link", "bin/tool", "dangling", "tmp"}
    of_store = {inside, *(f"{inside}/{name}" for name in ("lib", "lib/library.so", "link"))}
    parents = {parent.as_posix() for parent in Path(inside).parents[:-1]}
    assert set(members) == of_root | of_store | parents
    assert members[inside].isdir()
    assert members[f"{inside}/link"].linkname == "lib"
    assert members["tmp"].mode == 0o1777
    assert members["bin/tool"].mode == 0o755
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 1)}


def test_a_failure_of_the_compressor_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pigz").write_text("#!/bin/sh\ncat > /dev/null\nexit 3\n")
    (tmp_path / "bin" / "pigz").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(subprocess.CalledProcessError):
        _make(tmp_path / "layer", _root(tmp_path / "root"), [])
