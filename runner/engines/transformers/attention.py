"""Attention of a packed batch on a CPU, sequence by sequence.

Continuous batching packs all sequences of a step into one row, with a mask that separates them for ``sdpa``.
So the work grows with the square of their number: 32 sequences of 512 tokens took five times as long as with
``generate``. Here each sequence attends only to its own keys, at the cost of ``generate``. On a GPU a kernel
per sequence would be slower.
"""

from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.generation.continuous_batching.utils import build_attention_mask
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# NOTE: for a name with "flash" in it the library makes no mask of a step by the whole cache, and
# counts no memory for it.
NAME = "cpu_flash_per_sequence"

_MAX_KEPT_BYTES = 16 << 20
"""Limit of the size of a mask that is kept for the next layers."""


def install(model: PreTrainedModel) -> None:
    """Use this attention for ``model`` in place of ``sdpa``."""
    if model.config._attn_implementation == "sdpa":
        AttentionInterface.register(NAME, attend_per_sequence)
        model.config._attn_implementation = NAME
        model.config.get_text_config()._attn_implementation = NAME


def attend_per_sequence(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from ``query`` [1, heads, tokens, width], all sequences in a row; [1, tokens, heads, width]."""
    if "cu_seq_lens_q" not in kwargs:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    key, value = with_cache(module, key, value, kwargs)
    num_heads, num_key_heads = query.shape[1], key.shape[1]
    query_lengths = kwargs["cu_seq_lens_q"].diff().tolist()
    key_lengths = kwargs["cu_seq_lens_k"].diff().tolist()
    outputs = []
    for queries, keys, values in zip(
        query.split(query_lengths, 2), key.split(key_lengths, 2), value.split(key_lengths, 2), strict=True
    ):
        num_queries, num_keys = queries.shape[2], keys.shape[2]
        if num_queries == 1:
            # Query heads that share a key head are treated as its rows; all keys are visible to them.
            queries = queries.view(1, num_key_heads, num_heads // num_key_heads, -1)
            attended = scaled_dot_product_attention(queries, keys, values, scale=scaling)
            outputs.append(attended.reshape(1, num_heads, -1))
        else:
            window = sliding_window or num_keys
            is_causal = num_queries == num_keys <= window
            mask = None if is_causal else _mask(num_queries, num_keys, window, query.dtype)
            attended = scaled_dot_product_attention(
                queries,
                keys,
                values,
                mask,
                0.0,
                is_causal,
                scale=scaling,
                enable_gqa=num_heads != num_key_heads,
            )
            outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)[None], None


def with_cache(
    module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of the whole sequences.

    Before transformers 5.24 this is left to the attention. ``update`` replaces the lengths in ``kwargs`` by
    those of this layer's kind of attention.
    """
    cache = kwargs.pop("cache", None)
    if cache is None:
        return key, value
    updated: tuple[torch.Tensor, torch.Tensor] = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs
    )
    return updated


def _mask(num_queries: int, num_keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the mask of one sequence, [queries, keys], which all layers of a kind share.

    A long mask is not kept: each layer makes it again, at a few percent of the attention's cost.
    """
    is_long = num_queries * num_keys * dtype.itemsize > _MAX_KEPT_BYTES
    make = _made_mask.__wrapped__ if is_long else _made_mask
    return make(num_queries, num_keys, window, dtype)


@lru_cache(maxsize=2)
def _made_mask(num_queries: int, num_keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.full((1, 1, num_queries, num_keys), torch.finfo(dtype).min, dtype=dtype)
    build_attention_mask(mask, [0, num_queries], [0, num_keys], window)
    return mask
