"""Tiny GGUF models, written as llama.cpp's converter does, from random weights in transformers' order."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.builder import tiny_model

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
VOCABULARY = tiny_model.VOCABULARY
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc"]
SENTENCEPIECE = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES]

Weights = dict[str, NDArray[np.float32]]


def weights(architecture: str, *, tied: bool = False) -> Weights:
    random = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    for layer in (f"model.layers.{number}." for number in range(LAYERS)):
        for name, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            if architecture == "qwen2":
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
            if architecture == "qwen3" and name != "v":
                shapes[f"{layer}self_attn.{name}_norm.weight"] = (HEAD_DIM,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{layer}mlp.down_proj.weight"] = (HIDDEN, INNER)
        shapes[f"{layer}input_layernorm.weight"] = (HIDDEN,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (HIDDEN,)
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    architecture: str = "llama",
    *,
    named: Weights | None = None,
    type_of: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    sentencepiece: bool = False,
    extra: Weights | None = None,
) -> Path:
    """``type_of``: by GGUF's names, "*" for all matrices; ``metadata`` overrides, and None removes."""
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        f"{architecture}.{key}": value
        for key, value in {
            "context_length": 64,
            "embedding_length": HIDDEN,
            "feed_forward_length": INNER,
            "block_count": LAYERS,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 50000.0,
        }.items()
    }
    values |= _sentencepiece() if sentencepiece else _byte_level()
    values |= {"tokenizer.chat_template": TEMPLATE, **(metadata or {})}
    for key, value in values.items():
        _add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    if architecture != "llama":
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], LAYERS)
    for name, tensor in (weights(architecture) if named is None else named).items():
        stem, _, suffix = name.rpartition(".")
        gguf_name = f"{names.get_name(stem)}.{suffix}"
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = _interleaved(tensor, HEADS if "q_proj" in name else KV_HEADS)
        wanted = (type_of or {}).get(gguf_name) or ((type_of or {}).get("*") if tensor.ndim > 1 else None)
        kind = gguf.GGMLQuantizationType[wanted or "F32"]
        writer.add_tensor(gguf_name, gguf.quantize(tensor, kind), raw_dtype=kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleaved(tensor: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Row 2i of a head is row i of its first half, row 2i + 1 that of its second."""
    order = []
    for head in range(heads):
        begin = head * HEAD_DIM
        for row in range(HEAD_DIM // 2):
            order += [begin + row, begin + HEAD_DIM // 2 + row]
    return tensor[order]


def _byte_level() -> dict[str, Any]:
    tokenizer = Tokenizer.from_str(tiny_model.tokenizer_json().decode())
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def _sentencepiece() -> dict[str, Any]:
    count = len(SENTENCEPIECE)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SENTENCEPIECE,
        "tokenizer.ggml.scores": [float(-number) for number in range(count)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (count - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)
