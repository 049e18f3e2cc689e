"""The matrices of a model family, which ``config.json`` does not describe.

A test checks each entry against transformers' model of that family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    is_gated: bool = True
    """The MLP has a third matrix, the gate."""
    has_positions: bool = False
    """Learned position embeddings."""
    position_offset: int = 0
    is_tied: bool = False
    """Unless the config has tie_word_embeddings."""
    multi_query: str | None = None
    """The config's key for one KV head, or ``multi_query_group_num`` of them (``key=default``)."""
    multi_query_unless_new: bool = False
    halves_intermediate: bool = False


LLAMA_LIKE = Family()
_PLAIN = Family(is_gated=False, is_tied=True)

_FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "phi3", "internlm2", "internlm",
            "baichuan", "deepseek", "deepseek_v2", "deepseek_v3", "dbrx",
        ),
        LLAMA_LIKE,
    ),
    **dict.fromkeys(("gemma", "gemma2"), Family(is_tied=True)),
    **dict.fromkeys(("phi", "gptj", "gpt_neox", "nemotron"), Family(is_gated=False)),
    **dict.fromkeys(("starcoder2", "bloom", "mpt"), _PLAIN),
    "qwen": Family(halves_intermediate=True),
    "chatglm": Family(multi_query="multi_query_attention=false"),
    "gpt2": Family(is_gated=False, is_tied=True, has_positions=True),
    "gpt_bigcode": Family(is_gated=False, is_tied=True, has_positions=True, multi_query="multi_query=true"),
    "opt": Family(is_gated=False, is_tied=True, has_positions=True, position_offset=2),
    "falcon": Family(is_gated=False, is_tied=True, multi_query_unless_new=True),
}  # fmt: skip


def family_of(model_type: str) -> Family | None:
    return _FAMILIES.get(model_type)
