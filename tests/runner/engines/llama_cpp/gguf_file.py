"""GGUF files of random llama models, written from transformers' weights as llama.cpp's converter does."""

import struct
from pathlib import Path

import torch
from transformers import PreTrainedModel

from engine.kinds import GGUF_NAME

_UINT32, _FLOAT32, _STRING = 4, 6, 8
_ALIGNMENT = 32
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(model: PreTrainedModel, folder: Path) -> Path:
    """Write ``model`` in float32, without a vocabulary, as an engine's folder, and return that."""
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    values: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "no_vocab",
        "llama.vocab_size": config.vocab_size,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": 10000.0,
    }
    tensors = {_name(name): _ordered(name, tensor, head_dim) for name, tensor in model.state_dict().items()}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
    for key, value in values.items():
        head += _string(key) + _value(value)
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += tensor.numpy().astype("<f4").tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    folder.mkdir(exist_ok=True)
    (folder / GGUF_NAME).write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
    return folder


def _name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _ordered(name: str, tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Interleave the halves of each head's rows of queries and keys."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor.contiguous()
    heads = tensor.shape[0] // head_dim
    halves = tensor.reshape(heads, 2, head_dim // 2, -1)
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    return struct.pack("<If", _FLOAT32, value)
