"""Whatever happens to a tar's bytes: a coded error and nothing left, or exactly what was packed."""

import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.names import BadName, NameSet
from engine.tar.manifest import MANIFEST_NAME, manifest_bytes, parse_manifest
from engine.tar.pack import pack
from engine.tar.unpack import unpack
from errors.coded_error import CodedError
from tests.engine.samples import FACTS, FILES, everything_in, legacy_tar, packed, read_files, write_files

SMALL = {**FILES, "model.safetensors": bytes(range(256)) * 8}


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return packed(tmp_path_factory.mktemp("tar"), SMALL).read_bytes()


def _unpack_damaged(damaged: bytes, manifest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "engine"
        try:
            unpack(io.BytesIO(damaged), target)
        except CodedError:
            assert everything_in(Path(folder)) == []
        else:
            assert read_files(target) == SMALL
            assert (target / MANIFEST_NAME).read_bytes() == manifest


def _manifest(tar: bytes) -> bytes:
    return tar[512:].split(b"\0", 1)[0]


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_bits_flipped_bytes_cut_put_in_left_out_or_replaced_are_noticed_or_harmless(
    tar: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(tar) - 1))
    if data.draw(st.booleans()):
        flipped = tar[start] ^ 1 << data.draw(st.integers(0, 7))
        _unpack_damaged(tar[:start] + bytes([flipped]) + tar[start + 1 :], _manifest(tar))
    elif data.draw(st.booleans()):
        _unpack_damaged(tar[:start], _manifest(tar))
    else:
        end = data.draw(st.integers(start, min(len(tar), start + 2000)))
        _unpack_damaged(tar[:start] + data.draw(st.binary(max_size=2000)) + tar[end:], _manifest(tar))


def test_every_flipped_bit_of_the_manifest_is_noticed(tar: bytes) -> None:
    manifest = _manifest(tar)
    for bit in range(len(manifest) * 8):
        damaged = bytearray(manifest)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            parsed = parse_manifest(bytes(damaged), "engine.tar")
        except CodedError:
            continue
        assert manifest_bytes(parsed) == manifest


def test_a_cut_of_a_tar_without_manifest_is_noticed_everywhere() -> None:
    tar = legacy_tar()
    end = len(tar.rstrip(b"\0")) + 1024
    for size_bytes in range(0, end - 511, 97):
        with tempfile.TemporaryDirectory() as folder:
            with pytest.raises(CodedError, match="E13"):
                unpack(io.BytesIO(tar[:size_bytes]), Path(folder) / "engine")
            assert everything_in(Path(folder)) == []


_PART = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=40
).filter(lambda part: part not in (".", "..") and len(part.encode()) <= 255)
_NAME = st.lists(_PART, min_size=1, max_size=4).map("/".join)
_TOKENIZER = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}


@settings(max_examples=100, deadline=None)
@given(files=st.dictionaries(_NAME, st.binary(max_size=3000), max_size=8))
def test_any_tree_comes_back_as_it_was(files: dict[str, bytes]) -> None:
    files = files | _TOKENIZER
    names = NameSet()
    names.add(MANIFEST_NAME)
    try:
        for name in files:
            names.add(name)
    except BadName:
        assume(False)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        packed_manifest = pack(write_files(root / "in", files), FACTS, root / "engine.tar")
        with (root / "engine.tar").open("rb") as file:
            assert unpack(file, root / "out") == packed_manifest
        assert read_files(root / "out") == files
