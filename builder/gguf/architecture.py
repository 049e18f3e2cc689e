"""Translation of GGUF's metadata to ``config.json``, and of tensor names, by architecture."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, dequantize

from builder.gguf.header import GgufFile

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class _Architecture:
    model_type: str
    hf_class: str
    is_permuted: bool = False
    """True if the halves of each head's query and key rows are interleaved, as by llama.cpp's converter."""
    has_qkv_bias: bool = False
    has_qk_norm: bool = False


_ARCHITECTURES = {
    "llama": _Architecture("llama", "LlamaForCausalLM", is_permuted=True),
    "qwen2": _Architecture("qwen2", "Qwen2ForCausalLM", has_qkv_bias=True),
    "qwen3": _Architecture("qwen3", "Qwen3ForCausalLM", has_qk_norm=True),
}


@dataclass(frozen=True)
class Weight:
    """A tensor of the model and its name in GGUF; ``num_heads`` if its rows must be put in order again."""

    name: str
    gguf_name: str
    shape: tuple[int, ...]
    num_heads: int | None = None


@dataclass(frozen=True)
class Architecture:
    """Parts of a model: ``values`` are those of config.json, ``weights`` all that the file must have."""

    values: Mapping[str, Any]
    weights: tuple[Weight, ...]


def read_architecture(file: GgufFile) -> Architecture:
    """Read what ``file`` says about its model. Raises GgufUnsupported, ModelUnusable."""
    architecture = _ARCHITECTURES.get(file.architecture)
    if architecture is None:
        remedy = f"supported are {', '.join(_ARCHITECTURES)}: use the model's safetensors, or the engine "
        remedy += "llama_cpp, which runs the file on the CPU"
        raise file.unsupported(f"the architecture {file.architecture!r}", remedy)
    values = _config(file, architecture)
    if values["num_hidden_layers"] > len(file.tensors):
        raise file.unusable(f"it has {values['num_hidden_layers']} layers, but {len(file.tensors)} tensors")
    weights = tuple(_weights(values, architecture))
    _check_tensors(file, weights)
    return Architecture(values, weights)


def read_description(file: GgufFile) -> dict[str, Any]:
    """Return the values of config.json that tell a model's size and tokens, of any architecture.

    ``quantization_config`` has the commonest type of the weights and their size. Raises ModelUnusable.
    """

    def number(key: str) -> int | None:
        found = file.metadata.get(f"{file.architecture}.{key}")
        # Some architectures have a value for each layer.
        found = max(found, default=None) if isinstance(found, tuple) else found
        return found if isinstance(found, int) and 0 < found < 1 << 40 else None

    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.size_bytes
    tokens = file.get("tokenizer.ggml.tokens", tuple) or ()
    embedding = file.tensors.get("token_embd.weight")
    values = {
        "model_type": file.architecture,
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "max_position_embeddings": number("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": stored_dtype(file),
        "vocab_size": embedding.shape[0] if embedding is not None else len(tokens),
        "quantization_config": {
            "quant_method": "gguf",
            "type": sizes.most_common(1)[0][0] if sizes else "none",
            "total_bytes": sizes.total(),
        },
        **_token_ids(file),
    }
    return {key: value for key, value in values.items() if value is not None}


def _token_ids(file: GgufFile) -> dict[str, int | None]:
    return {
        f"{name}_token_id": file.get(f"tokenizer.ggml.{key}_token_id", int)
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }


def stored_dtype(file: GgufFile) -> str:
    """Return the data type of the file's numbers; bfloat16 for quantized ones."""
    names = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return _DTYPES.get(names.pop(), "bfloat16") if len(names) == 1 else "bfloat16"


def _config(file: GgufFile, architecture: _Architecture) -> dict[str, Any]:
    def number(key: str, expected: Any = int, default: Any = None) -> Any:
        found = file.get(f"{file.architecture}.{key}", expected)
        if found is None and default is None:
            raise file.unusable(f"its metadata has no {file.architecture}.{key}")
        value = default if found is None else found
        if not 0 < value < 1 << 40:
            raise file.unusable(f"its {file.architecture}.{key} is {value}")
        return value

    hidden, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", default=max(hidden // heads, 1))
    if number("rope.dimension_count", default=head_dim) != head_dim:
        raise file.unsupported("rotary positions on a part of each head")
    if file.get(f"{file.architecture}.expert_count", int):
        raise file.unsupported("a mixture of experts")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise file.unusable("its GGUF file has no tensor token_embd.weight")
    values = {
        "architectures": [architecture.hf_class],
        "model_type": architecture.model_type,
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", float),
        "rope_theta": number("rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(file, head_dim, number("rope.freq_base", float, 10000.0)),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": stored_dtype(file),
        "vocab_size": embedding.shape[0],
        **_token_ids(file),
    }
    return {key: value for key, value in values.items() if value is not None}


def _rope_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    """Return how positions beyond the training's are scaled: stated, or by a tensor (Llama 3.1)."""
    prefix = f"{file.architecture}.rope.scaling"
    kind = file.get(f"{prefix}.type", str) or "none"
    factor = file.get(f"{prefix}.factor", float)
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, head_dim, theta)
    if kind == "none" or factor is None:
        return None
    original = file.get(f"{prefix}.original_context_length", int)
    if kind not in ("linear", "yarn") or (kind == "yarn" and original is None):
        raise file.unsupported(f"the rope scaling {kind!r}")
    scaling = {"rope_type": kind, "factor": factor}
    return scaling if kind == "linear" else {**scaling, "original_max_position_embeddings": original}


def _llama3_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    """Return Llama 3.1's scaling whose factors are in the tensor ``rope_freqs``."""
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.shape != (head_dim // 2,) or tensor.type.name != "F32":
        raise file.unusable(f"its rope_freqs.weight has the shape {tensor.shape}")
    if file.path is None:
        return {"rope_type": "llama3"}
    found = np.fromfile(file.path, "<f4", head_dim // 2, offset=tensor.offset)
    factor = float(found.max())
    low, high, original = 1.0, 4.0, 8192
    turns = original * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    if not np.allclose(found, 1 / ((1 - smooth) / factor + smooth), rtol=1e-3):
        raise file.unsupported("rope factors that are not those of Llama 3.1")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _weights(values: Mapping[str, Any], architecture: _Architecture) -> Iterator[Weight]:
    hidden, inner = values["hidden_size"], values["intermediate_size"]
    heads, kv_heads, head_dim = (
        values[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    vocabulary = (values["vocab_size"], hidden)
    yield Weight("model.embed_tokens.weight", "token_embd.weight", vocabulary)
    yield Weight("model.norm.weight", "output_norm.weight", (hidden,))
    if not values["tie_word_embeddings"]:
        yield Weight("lm_head.weight", "output.weight", vocabulary)
    for layer in range(values["num_hidden_layers"]):
        to, source = f"model.layers.{layer}", f"blk.{layer}"
        for short, letter, count in (("q", "q", heads), ("k", "k", kv_heads), ("v", "v", kv_heads)):
            permuted = count if architecture.is_permuted and short != "v" else None
            name, gguf_name, rows = (
                f"{to}.self_attn.{short}_proj",
                f"{source}.attn_{letter}",
                count * head_dim,
            )
            yield Weight(f"{name}.weight", f"{gguf_name}.weight", (rows, hidden), permuted)
            if architecture.has_qkv_bias:
                yield Weight(f"{name}.bias", f"{gguf_name}.bias", (rows,))
            if architecture.has_qk_norm and short != "v":
                norm = f"{to}.self_attn.{short}_norm.weight"
                yield Weight(norm, f"{gguf_name}_norm.weight", (head_dim,))
        output = (hidden, heads * head_dim)
        yield Weight(f"{to}.self_attn.o_proj.weight", f"{source}.attn_output.weight", output)
        yield Weight(f"{to}.mlp.gate_proj.weight", f"{source}.ffn_gate.weight", (inner, hidden))
        yield Weight(f"{to}.mlp.up_proj.weight", f"{source}.ffn_up.weight", (inner, hidden))
        yield Weight(f"{to}.mlp.down_proj.weight", f"{source}.ffn_down.weight", (hidden, inner))
        yield Weight(f"{to}.input_layernorm.weight", f"{source}.attn_norm.weight", (hidden,))
        yield Weight(f"{to}.post_attention_layernorm.weight", f"{source}.ffn_norm.weight", (hidden,))


def _check_tensors(file: GgufFile, weights: tuple[Weight, ...]) -> None:
    """Check that every weight is there, in its shape and a readable type, and nothing besides."""
    expected = {weight.gguf_name: weight for weight in weights}
    for name, weight in expected.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            raise file.unusable(f"its GGUF file has no tensor {name}")
        if tensor.shape != weight.shape:
            raise file.unusable(f"its tensor {name} has the shape {tensor.shape}, not {weight.shape}")
    if unknown := sorted(file.tensors.keys() - expected - {"rope_freqs.weight"}):
        raise file.unsupported(
            f"tensors that {file.architecture} models here don't have ({unknown[0][:100]})"
        )
    for quantization in {tensor.type for tensor in file.tensors.values()}:
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[quantization][1]), np.uint8), quantization)
        except NotImplementedError:
            found = f"tensors of type {quantization.name}"
            raise file.unsupported(found, "choose another quantization") from None
