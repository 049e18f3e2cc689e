"""Write one image layer: the content of a folder at ``/``, and store paths at their own places.

Makes ``OUT/layer.tar.gz`` and ``OUT/layer.json`` (name, digest, size, diff_id). The tar depends on the
content only: sorted, owned by root, without times. Standard library, and pigz to compress.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

_BLOCK_BYTES = 1 << 20
_MTIME = 1
"""As in the Nix store."""
_WRITABLE_MODE = 0o1777
"""For folders that every user may write into, as an image may run as any user."""


class DigestingWriter(io.RawIOBase):
    """Forwards what is written and computes its SHA-256."""

    def __init__(self, to: BinaryIO) -> None:
        self._to = to
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.sha256.update(data)
        self._to.write(data)
        return len(data)


def write_tar(to: BinaryIO, root: Path, store_paths: list[str], writable: list[str]) -> None:
    """The layer's tar. ``writable`` are folders of ``root``, such as "tmp"."""
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        added = set()
        for path, name in _under(root):
            _add(tar, path, name, _WRITABLE_MODE if name in writable else 0o755)
            added.add(name)
        for store_path in sorted(store_paths):
            for folder in reversed(Path(store_path).parents[:-1]):
                if (name := folder.as_posix().lstrip("/")) not in added:
                    added.add(name)
                    tar.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
            _add(tar, Path(store_path), store_path.lstrip("/"))
            for path, name in _under(Path(store_path)):
                _add(tar, path, f"{store_path.lstrip('/')}/{name}")


def _under(folder: Path) -> Iterator[tuple[Path, str]]:
    """Everything below a folder and its name from there, sorted, folders before what they hold."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        yield path, path.relative_to(folder).as_posix()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, _MTIME
    return entry


def _add(tar: tarfile.TarFile, path: Path, name: str, mode: int = 0o755) -> None:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        tar.addfile(_entry(name, tarfile.DIRTYPE, mode))
    elif stat.S_ISLNK(status.st_mode):
        entry = _entry(name, tarfile.SYMTYPE, 0o777)
        entry.linkname = str(path.readlink())
        tar.addfile(entry)
    else:
        assert stat.S_ISREG(status.st_mode), path
        entry = _entry(name, tarfile.REGTYPE, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)
        entry.size = status.st_size
        with path.open("rb") as content:
            tar.addfile(entry, content)


def compress(root: Path, store_paths: list[str], writable: list[str], target: Path) -> dict[str, object]:
    """Write the compressed layer to ``target``; returns what a manifest says of it."""
    threads = os.environ.get("NIX_BUILD_CORES", "1")
    with target.open("wb") as file:
        pigz = subprocess.Popen(
            ["pigz", "--no-name", "--stdout", "-p", threads if int(threads) else "1"],
            stdin=subprocess.PIPE,
            stdout=file,
        )
        assert pigz.stdin is not None
        tar = DigestingWriter(cast(BinaryIO, pigz.stdin))
        write_tar(cast(BinaryIO, tar), root, store_paths, writable)
        pigz.stdin.close()
        if pigz.wait() != 0:
            raise SystemExit("pigz failed")
    with target.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return {
        "digest": f"sha256:{digest.hexdigest()}",
        "size": target.stat().st_size,
        "diff_id": f"sha256:{tar.sha256.hexdigest()}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True, help="a folder whose content lies at /")
    parser.add_argument("--store-paths", type=Path, required=True, help="a file that names them")
    parser.add_argument("--writable", nargs="*", default=[], help="folders of it for every user to write in")
    options = parser.parse_args()
    options.out.mkdir()
    store_paths = options.store_paths.read_text().split()
    facts = compress(options.root, store_paths, options.writable, options.out / "layer.tar.gz")
    (options.out / "layer.json").write_text(json.dumps({"name": options.name, **facts}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
