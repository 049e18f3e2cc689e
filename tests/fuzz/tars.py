"""Engine tars of strangers: a whole engine, or a code and nothing left; never a file elsewhere."""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path

from engine.tar.manifest import FileEntry, make_manifest, manifest_bytes
from engine.tar.unpack import unpack
from errors.coded_error import CodedError
from tests.engine.samples import FACTS, LEGACY_FILES, everything_in, handmade_tar, packed
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal

_NAMES = (
    *("config.json", "rank0.engine", "./config.json", "../victim", "/tmp/victim", "a/b", "a", "Config.json"),
    *(
        "tokenizer.json",
        "engine_manifest.json",
        "x" * 120,
        "y/" * 60 + "z",
        "é",
        "con\n",
        ".",
        "",
        "a\\b",
        "...",
    ),
)
_TYPES = (*(tarfile.REGTYPE,) * 6, *(bytes([kind]) for kind in range(256)))
_FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
_SIZES = (0, 5, -1, 1 << 33, 1 << 62)
_PAX_VALUES = ("x", "../victim", "5", "-5", "1e9", "9" * 30, "a\nb", "\u202e")


def engine_tar(data: bytes) -> None:
    choices = Choices(data)
    tar = choices.damaged(choices.of((_packed(), _legacy(), _made(choices), _made(choices))))
    if choices.below(6) == 5:
        tar = choices.damaged(gzip.compress(tar, 1, mtime=0))
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "out")
        folder.mkdir()
        try:
            manifest = unpack(
                io.BytesIO(tar), folder / "engine", size_bytes=len(tar) if choices.flag() else None
            )
        except CodedError as exc:
            check_refusal(exc, "E13")
            assert everything_in(folder) == []
        else:
            names = {path.relative_to(folder / "engine").as_posix() for path in _files(folder)}
            assert names - {"engine_manifest.json"} == set(manifest.files)
        assert everything_in(Path(root))[:1] == ["out"]
        assert {path.name for path in Path(root).iterdir()} == {"out"}


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    assert all(path.is_file() and not path.is_symlink() for path in found)
    return found


def _made(choices: Choices) -> bytes:
    members: list[tuple[tarfile.TarInfo | str, bytes]] = []
    if choices.flag():
        members += LEGACY_FILES.items()
    for _ in range(choices.below(4)):
        info = tarfile.TarInfo(choices.of(_NAMES))
        info.type = choices.of(_TYPES)
        info.linkname = choices.of(_NAMES)
        if choices.below(4) == 3:
            info.pax_headers = {
                choices.of(("path", "size", "linkpath", "GNU.sparse.map")): choices.of(_PAX_VALUES)
            }
        members.append((info, choices.bytes(40)))
    if choices.flag():
        files = {
            name: FileEntry(size_bytes=5, sha256="0" * 64) for name in choices.some(("a", "b", "config.json"))
        }
        members.insert(0, ("engine_manifest.json", manifest_bytes(make_manifest(FACTS, files, ""))))
    try:
        tar = bytearray(handmade_tar(members, choices.of(_FORMATS)))
    except ValueError:
        return choices.rest()
    if choices.below(4) == 3:
        _claim_size(tar, choices.of(_SIZES))
    return bytes(tar)


def _claim_size(tar: bytearray, size_bytes: int) -> None:
    """In the first header, with a right checksum."""
    tar[124:136] = tarfile.itn(size_bytes, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])


@lru_cache
def _packed() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return packed(Path(folder), {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}).read_bytes()


@lru_cache
def _legacy() -> bytes:
    return handmade_tar(LEGACY_FILES.items())
