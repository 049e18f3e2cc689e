"""Attention of a packed batch on a CPU, sequence by sequence.

Continuous batching packs all sequences of a step into one row, with a mask that separates them for ``sdpa``.
So the work grows with the square of their number: 32 sequences of 512 tokens took five times as long as with
``generate``. Here each sequence attends only to its own keys, at the cost of ``generate``. On a GPU a kernel
per sequence would be slower.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

_SDPA = "sdpa"


def install() -> None:
    """Replace ``sdpa`` in this process; calls without a paged cache are passed on to the library's own."""
    AttentionInterface.register(_SDPA, sdpa_per_sequence)


def sdpa_per_sequence(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from ``query`` [1, heads, tokens, width], all sequences in a row; [1, tokens, heads, width].

    ``attention_mask`` is the library's mask of the whole packed batch: the part of a sequence includes
    causality and sliding windows.
    """
    is_packed = kwargs.get("cache") is not None and len(kwargs["cu_seq_lens_q"]) > 2
    if not is_packed or attention_mask is None or kwargs.get("position_bias") is not None:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    # ``update`` replaces the lengths in ``kwargs`` by those of this layer's kind of attention.
    key, value = kwargs.pop("cache").update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs
    )
    num_heads, num_key_heads = query.shape[1], key.shape[1]
    query_borders, key_borders = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    query_lengths, key_lengths = query_borders.diff().tolist(), key_borders.diff().tolist()
    outputs = []
    start, first_key = 0, 0
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
            mask = attention_mask[:, :, start : start + num_queries, first_key : first_key + num_keys]
            attended = scaled_dot_product_attention(
                queries, keys, values, mask, scale=scaling, enable_gqa=num_heads != num_key_heads
            )
            outputs.append(attended[0].transpose(0, 1))
        start, first_key = start + num_queries, first_key + num_keys
    return torch.cat(outputs)[None], None
