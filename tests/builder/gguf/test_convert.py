"""A GGUF file becomes the model that it was made of: weights, configuration, tokenizer, chat template."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from builder.build import build
from builder.gguf import convert as convert_module
from builder.gguf.convert import convert
from builder.plan import plan_lines
from builder.weights.model_files import Model
from engine.end_ids import read_end_ids
from engine.inspect import verify
from engine.kinds import GGUF_NAME
from engine.sampling_defaults import read_sampling_defaults
from errors.build_config import (
    ConflictingBuildKeys,
    InvalidBuildValue,
    ModelPathInvalid,
    ModelUnusable,
    WeightFormatMissing,
)
from tests.builder import tiny_model
from tests.builder.conftest import MODEL_ID
from tests.builder.gguf import gguf_models
from tests.builder.hub_server import HubServer, Repository


def converted(path: Path, dtype: str | None = None) -> Path:
    folder = path.parent / f"out-{dtype}"
    model = convert(Model("tiny", None, {path.name: path}), path.name, folder, dtype, None)
    assert set(model.files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    return folder


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
def test_the_weights_are_those_of_which_the_file_was_made(
    tmp_path: Path, architecture: str, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "_CHUNK_NUMBERS", 1000)  # several chunks per tensor
    named = gguf_models.weights(architecture, tied=tied)
    folder = converted(gguf_models.write(tmp_path / "x.gguf", architecture, named=named))
    found = load_file(folder / "model.safetensors")
    assert found.keys() == named.keys()
    assert all(np.array_equal(found[name], named[name]) for name in named)
    config = read(folder / "config.json")
    assert config["model_type"] == architecture
    assert config["tie_word_embeddings"] is tied
    assert (config["torch_dtype"], config["rope_theta"], config["head_dim"]) == ("float32", 50000.0, 16)
    assert read(folder / "generation_config.json")["eos_token_id"] == [1]


def test_a_file_that_names_another_end_token_still_ends_at_that_of_its_vocabulary(tmp_path: Path) -> None:
    """Read it as files of base models are made: their turns end with ``<|im_end|>`` all the same."""
    tokens = [*gguf_models.SENTENCEPIECE[:-1], "<|im_end|>"]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 1}
    folder = converted(gguf_models.write(tmp_path / "x.gguf", metadata=metadata, sentencepiece=True))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert read_end_ids(folder, tokenizer) == (1, len(tokens) - 1, 2)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("Q4_0", "bfloat16"),
        ("Q5_1", "bfloat16"),
        ("Q8_0", "bfloat16"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
    ],
)
def test_quantized_weights_are_exactly_those_that_the_library_unpacks(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    quantization = gguf.GGMLQuantizationType[kind]

    def rounded(tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        if tensor.ndim == 1:
            return tensor
        return gguf.dequantize(gguf.quantize(tensor, quantization), quantization)

    named = gguf_models.weights("llama")
    path = gguf_models.write(tmp_path / "x.gguf", named=named, type_of={"*": kind})
    folder = converted(path, dtype="float32")
    found = load_file(folder / "model.safetensors")
    assert all(np.array_equal(found[name], rounded(named[name])) for name in named)
    own = converted(path)
    assert read(own / "config.json")["torch_dtype"] == dtype
    size_bytes = sum(tensor.size for tensor in named.values()) * 2
    assert (own / "model.safetensors").stat().st_size - size_bytes < 8192


def test_the_factors_of_llama_3_1_become_its_rope_scaling(tmp_path: Path) -> None:
    turns = 8192 * 50000.0 ** -(np.arange(0, 16, 2) / 16) / (2 * np.pi)
    smooth = (np.clip(turns, 1, 4) - 1) / 3
    factors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    path = gguf_models.write(tmp_path / "x.gguf", extra={"rope_freqs.weight": factors})
    assert read(converted(path) / "config.json")["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_the_files_sampling_parameters_are_those_of_the_generation_config(tmp_path: Path) -> None:
    given = {"temp": 0.6, "top_p": 0.95, "top_k": 20, "penalty_repeat": 1.05}
    metadata = {f"general.sampling.{key}": value for key, value in given.items()}
    folder = converted(gguf_models.write(tmp_path / "x.gguf", metadata=metadata))
    assert read_sampling_defaults(folder) == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "repetition_penalty": 1.05,
    }


def test_a_byte_level_tokenizer_gives_the_tokens_of_the_original(tmp_path: Path) -> None:
    folder = converted(gguf_models.write(tmp_path / "x.gguf"))
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    original = Tokenizer.from_str(tiny_model.tokenizer_json().decode())
    for text in (*tiny_model.TEXT, "<s>hi</s>  12345", "e\u0301 \N{FAMILY}\u200d"):
        assert found.encode(text).ids == original.encode(text).ids
        assert found.decode(found.encode(text).ids) == original.decode(original.encode(text).ids)
    config = read(folder / "tokenizer_config.json")
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == gguf_models.TEMPLATE


def test_named_chat_templates_are_kept(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }
    folder = converted(gguf_models.write(tmp_path / "x.gguf", metadata=metadata))
    assert read(folder / "tokenizer_config.json")["chat_template"] == [
        {"name": "default", "template": gguf_models.TEMPLATE},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["\u0120\u0120", "1", "2", "3", "4", "\u0120it", "'s"]),
        ("llama-bpe", ["\u0120", "\u0120", "123", "4", "\u0120it", "'s"]),
        ("qwen2", ["\u0120", "\u0120", "1", "2", "3", "4", "\u0120it", "'s"]),
        ("gpt-2", ["\u0120", "\u01201234", "\u0120it", "'s"]),
    ],
)
def test_text_is_split_as_the_models_training_split_it(tmp_path: Path, pre: str, words: list[str]) -> None:
    path = gguf_models.write(tmp_path / "x.gguf", metadata={"tokenizer.ggml.pre": pre})
    tokenizer = Tokenizer.from_file(str(converted(path) / "tokenizer.json"))
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str("  1234 it's")] == words


def test_a_sentencepiece_tokenizer_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    named = gguf_models.weights("llama")
    rows = len(gguf_models.SENTENCEPIECE)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        named[name] = named[name][:rows]
    folder = converted(gguf_models.write(tmp_path / "x.gguf", named=named, sentencepiece=True))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode("abc \N{WHALE}</s>").tokens
    assert tokens[:4] == ["<s>", "\u2581ab", "c", "\u2581"]
    assert tokens[4:] == [*(f"<0x{byte:02X}>" for byte in "\N{WHALE}".encode()), "</s>"]
    assert tokenizer.decode(tokenizer.encode("abc \N{WHALE}").ids) == "abc \N{WHALE}"


def config_of(folder: Path, **keys: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_gguf_file_in_a_folder_is_built_and_planned(tmp_path: Path, engine: str) -> None:
    (tmp_path / "model").mkdir()
    gguf_models.write(tmp_path / "model" / "x.gguf", type_of={"*": "Q8_0"})
    config = config_of(tmp_path, engine=engine, model_path="model", gguf_file="x.gguf")
    lines = list(plan_lines(config))
    assert "[2/" in lines[1]
    assert "convert x.gguf to safetensors" in lines[1]
    assert any(line.startswith("weights  ") and "bfloat16" in line for line in lines)
    manifest = build(config, tmp_path / "engine.tar", report=lambda line: None)
    assert (manifest.dtype, manifest.max_seq_len) == ("bfloat16", 64)
    assert verify(tmp_path / "engine.tar") == manifest
    assert "x.gguf" not in manifest.files


def test_llama_cpp_has_the_file_as_it_is_of_any_architecture(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    unknown = {"blk.0.new.weight": np.zeros((4, 4), np.float32)}
    file = gguf_models.write(tmp_path / "model" / "x.gguf", type_of={"*": "Q8_0"}, extra=unknown)
    config = config_of(tmp_path, engine="llama_cpp", model_path="model", gguf_file="x.gguf")
    lines = list(plan_lines(config))
    assert not any("safetensors" in line or "bfloat16" in line for line in lines)
    assert any(line.startswith("weights  ") and "Q8_0" in line for line in lines)
    assert any(line.startswith("memory  ") and "weights as Q8_0" in line for line in lines)
    manifest = build(config, tmp_path / "engine.tar", report=lambda line: None)
    assert (manifest.engine_kind, manifest.quantization, manifest.max_seq_len) == ("llama_cpp", "Q8_0", 64)
    assert manifest.files[GGUF_NAME].size_bytes == file.stat().st_size
    assert {"config.json", "generation_config.json", "tokenizer.json"} < manifest.files.keys()
    for keys in ({"gguf_file": None}, {"dtype": "float16"}):
        given = {"engine": "llama_cpp", "model_path": "model", "gguf_file": "x.gguf", **keys}
        with pytest.raises(ConflictingBuildKeys, match=next(iter(keys))):
            build(config_of(tmp_path, **given), tmp_path / "other.tar", report=lambda line: None)
    given = {"engine": "llama_cpp", "model_path": "model", "gguf_file": "x.gguf", "max_batch_size": 257}
    with pytest.raises(InvalidBuildValue, match="max_batch_size must be at most 256"):
        build(config_of(tmp_path, **given), tmp_path / "other.tar", report=lambda line: None)


@pytest.mark.parametrize(("engine", "lists_sizes"), [("transformers", True), ("vllm", False)])
def test_of_a_hub_repository_only_the_gguf_file_is_downloaded(
    tmp_path: Path, hub: HubServer, engine: str, lists_sizes: bool
) -> None:
    content = gguf_models.write(tmp_path / "x.gguf").read_bytes()
    files = {**tiny_model.files(), "Q8/x.gguf": content, "y.gguf": b"none"}
    hub.repositories[MODEL_ID] = Repository(files, lfs={"Q8/x.gguf"}, lists_hashes=lists_sizes)
    config = config_of(tmp_path, engine=engine, model_id=MODEL_ID, gguf_file="Q8/x.gguf")
    assert any("Q8/x.gguf" in line for line in plan_lines(config))
    manifest = build(config, tmp_path / "engine.tar", report=lambda line: None)
    assert manifest.revision == hub.repositories[MODEL_ID].commit
    blobs = list((tmp_path / "cache" / "hub").rglob("blobs/*"))
    assert [path.read_bytes() for path in blobs if path.suffix == ""] == [content]


def test_a_missing_or_unnamed_gguf_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    gguf_models.write(tmp_path / "model" / "x.gguf")

    def refusal(expected: type[Exception], **keys: Any) -> str:
        with pytest.raises(expected) as found:
            build(config_of(tmp_path, **keys), tmp_path / "engine.tar", report=lambda line: None)
        return str(found.value)

    assert "it has x.gguf" in refusal(ModelUnusable, model_path="model", gguf_file="y.gguf")
    assert "set gguf_file to one of x.gguf" in refusal(WeightFormatMissing, model_path="model")
    assert "gguf_file" in refusal(ModelPathInvalid, model_path="model/x.gguf")
    keys = {"model_path": "model", "gguf_file": "x.gguf"}
    assert "weight_format" in refusal(ConflictingBuildKeys, weight_format="bin", **keys)
    paced = {"engine": "paced", "paced": {"tokens_per_second": 0}}
    assert "gguf_file" in refusal(ConflictingBuildKeys, **paced, **keys)
