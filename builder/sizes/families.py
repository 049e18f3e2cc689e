"""The matrices, norms and biases of a model family, which ``config.json`` does not describe.

A test checks each entry against transformers' model of that family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Family:
    """A bias is True, False, or the config's key for it (``key=default``)."""

    is_gated: bool = True
    """The MLP has a third matrix, the gate."""
    norms: int = 2
    """Per layer."""
    norm_bias: bool = False
    embedding_norm: bool = False
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool = False
    query_key_norms: bool = False
    has_positions: bool = False
    """Learned position embeddings."""
    position_offset: int = 0
    is_tied: bool = False
    """Unless the config has tie_word_embeddings."""
    multi_query: bool | str = False
    """One KV head, or ``multi_query_group_num``."""
    multi_query_unless_new: bool = False
    one_norm_if_parallel: bool = False
    halves_intermediate: bool = False
    shared_expert_gate: bool = False


LLAMA_LIKE = Family(
    qkv_bias="attention_bias=false", output_bias="attention_bias=false", mlp_bias="mlp_bias=false"
)
_PLAIN = Family(is_gated=False, norm_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True, is_tied=True)

_FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA_LIKE,
    "mistral": Family(),
    "mixtral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias="qkv_bias=true", shared_expert_gate=True),
    "qwen3": replace(LLAMA_LIKE, query_key_norms=True),
    "qwen": Family(qkv_bias=True, halves_intermediate=True),
    "gemma": Family(is_tied=True),
    "gemma2": Family(norms=4, is_tied=True),
    "phi": Family(
        is_gated=False, norms=1, norm_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True,
        head_bias=True
    ),
    "phi3": Family(),
    "internlm2": Family(qkv_bias="bias=false", output_bias="bias=false"),
    "internlm": Family(qkv_bias="bias=true", output_bias="bias=true"),
    "baichuan": Family(),
    "deepseek": Family(),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "chatglm": Family(qkv_bias="add_qkv_bias=true", multi_query="multi_query_attention=false"),
    "gpt2": replace(_PLAIN, has_positions=True),
    "gpt_bigcode": replace(_PLAIN, has_positions=True, multi_query="multi_query=true"),
    "starcoder2": replace(
        _PLAIN, qkv_bias="use_bias=true", output_bias="use_bias=true", mlp_bias="use_bias=true", is_tied=True
    ),
    "gptj": replace(_PLAIN, norms=1, qkv_bias=False, output_bias=False, head_bias=True, is_tied=False),
    "gpt_neox": replace(
        _PLAIN, qkv_bias="attention_bias=true", output_bias="attention_bias=true", is_tied=False
    ),
    "opt": replace(_PLAIN, has_positions=True, position_offset=2),
    "bloom": replace(_PLAIN, embedding_norm=True),
    "falcon": replace(
        _PLAIN, qkv_bias="bias=false", output_bias="bias=false", mlp_bias="bias=false",
        multi_query_unless_new=True, one_norm_if_parallel=True,
    ),
    "mpt": replace(_PLAIN, norm_bias=False, qkv_bias=False, output_bias=False, mlp_bias=False),
    "nemotron": Family(is_gated=False, norm_bias=True),
    "dbrx": Family(),
}  # fmt: skip


def family_of(model_type: str) -> Family | None:
    """The family of transformers' ``model_type``; None if unknown."""
    return _FAMILIES.get(model_type)
