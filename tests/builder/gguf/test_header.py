"""A GGUF file that is wrong or not supported is a coded sentence, before anything large is allocated."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.gguf.convert import convert
from builder.gguf.header import read_header
from builder.weights.model_files import Model
from errors.build_config import GgufUnsupported, ModelUnusable
from tests.builder.gguf import gguf_models

_STRING, _ARRAY = 8, 9


def refusal(path: Path, expected: type[Exception] = ModelUnusable) -> str:
    with pytest.raises(expected) as found:
        convert(Model("tiny", None, {path.name: path}), path.name, path.parent / "out", None, None)
    assert not (path.parent / "out").exists()
    sentence = str(found.value)
    assert "\n" not in sentence
    return sentence


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(rest: bytes = b"", *, version: int = 3, tensors: int = 0, values: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values) + rest


def value(kind: int, *more: int, rest: bytes = bytes(20)) -> bytes:
    """Return the header of a file with one value, of which ``more`` are its numbers: types before lengths."""
    return header(text("a") + struct.pack("<" + "I" * len(more) + "Q", kind, *more) + rest, values=1)


def tensor(dimensions: int, size: int, kind: int, offset: int) -> bytes:
    return header(text("a") + struct.pack("<IQIQ", dimensions, size, kind, offset) + bytes(40), tensors=1)


HUGE = (1 << 63) - 1
TWO_TENSORS = b"".join(text(name) + struct.pack("<IQIQ", 1, 8, 0, 0) for name in "ab").ljust(120)
BAD = {
    "an empty file": (b"", "is not a GGUF file"),
    "another kind of file": (b"PK\x03\x04" * 100, "is not a GGUF file"),
    "a future version": (header(version=9), "version 9"),
    "the first version": (header(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more tensors than bytes": (header(tensors=HUGE), "ends before"),
    "more values than bytes": (header(values=HUGE), "ends before"),
    "a long key": (header(struct.pack("<Q", HUGE) + bytes(20), values=1), "ends before"),
    "a long text": (value(_STRING, HUGE), "ends before"),
    "a long array of numbers": (value(_ARRAY, 0, HUGE), "ends before"),
    "a long array of texts": (value(_ARRAY, _STRING, HUGE), "ends before"),
    "an array of arrays": (value(_ARRAY, _ARRAY, 1), "unknown type 9"),
    "an unknown type of value": (value(77, 0), "unknown type 77"),
    "bytes for text": (value(_STRING, 2, rest=b"\xff\xfe"), "not UTF-8"),
    "many dimensions": (tensor(HUGE >> 32, 0, 0, 0), "dimensions"),
    "a huge tensor": (tensor(1, 1 << 60, 0, 0), "its header announces"),
    "a tensor far away": (tensor(1, 1, 0, HUGE), "its header announces"),
    "an unknown quantization": (tensor(1, 32, 999, 0), "tensors of type 999"),
    "an empty tensor": (tensor(1, 0, 0, 0), "impossible shape"),
    "tensors on one place": (header(TWO_TENSORS, tensors=2), "overlap"),
    "half a block": (tensor(1, 33, 2, 0), "impossible shape"),
}


def test_a_bad_file_is_refused_before_anything_large_is_allocated(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        for content, expected in BAD.values():
            (tmp_path / "x.gguf").write_bytes(content)
            assert expected in refusal(tmp_path / "x.gguf", (ModelUnusable, GgufUnsupported))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gguf_models.write(tmp_path / "whole.gguf").read_bytes()
    read_header("tiny", tmp_path / "whole.gguf")
    path = tmp_path / "x.gguf"
    for length in [*range(0, 400, 7), *range(400, len(whole), 4999), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelUnusable):
            read_header("tiny", path)


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "'wavenet'": {"general.architecture": "wavenet"},
    "a mixture of experts": {"llama.expert_count": 8},
    "rotary positions on a part": {"llama.rope.dimension_count": 8},
    "the rope scaling 'longrope'": {
        "llama.rope.scaling.type": "longrope",
        "llama.rope.scaling.factor": 2.0,
    },
    "split into 3 files": {"split.count": 3},
    "the pre-tokenizer 'deepseek-coder'": {"tokenizer.ggml.pre": "deepseek-coder"},
    "a tokenizer of the kind 'rwkv'": {"tokenizer.ggml.model": "rwkv"},
}
CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "no llama.block_count": {"llama.block_count": None},
    "layers, but": {"llama.block_count": 4_000_000_000},
    "has the shape": {"llama.feed_forward_length": 128},
    "no tensor blk.2.": {"llama.block_count": 3},
    "no whole vocabulary": {"tokenizer.ggml.tokens": None},
    "another type": {"llama.context_length": "many"},
    "eos_token_id is 5000": {"tokenizer.ggml.eos_token_id": 5000},
    "a merge that is no pair": {"tokenizer.ggml.merges": ["abc"]},
    "vocabulary is wrong": {"tokenizer.ggml.merges": ["not there"]},
}


def test_what_is_not_supported_or_contradicts_itself_is_refused_by_name(tmp_path: Path) -> None:
    for error, cases in ((GgufUnsupported, UNSUPPORTED), (ModelUnusable, CONTRADICTIONS)):
        for words, metadata in cases.items():
            assert words in refusal(gguf_models.write(tmp_path / "x.gguf", metadata=metadata), error)


def test_tensors_of_another_kind_of_model_are_refused_by_name(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    path = gguf_models.write(tmp_path / "x.gguf", extra=extra)
    assert "blk.0.attn_sinks.weight" in refusal(path, GgufUnsupported)
    factors = {"rope_freqs.weight": np.linspace(1, 5, 8, dtype=np.float32)}
    path = gguf_models.write(tmp_path / "x.gguf", extra=factors)
    assert "rope factors" in refusal(path, GgufUnsupported)


def test_a_quantization_that_the_library_cannot_unpack_is_named(tmp_path: Path) -> None:
    path = gguf_models.write(
        tmp_path / "x.gguf", named=gguf_models.weights("llama"), type_of={"output.weight": "F32"}
    )
    content = bytearray(path.read_bytes())
    at = content.index(b"output.weight") + len("output.weight") + 4 + 16
    content[at : at + 4] = struct.pack("<I", 28)  # F64: twice as long, so the file is made longer
    (tmp_path / "y.gguf").write_bytes(bytes(content) + bytes(1 << 20))
    assert "F64" in refusal(tmp_path / "y.gguf", GgufUnsupported)
