"""Attention of a packed batch on a GPU, with PyTorch's built-in flash attention.

Without a flash attention package the library uses ``sdpa`` over the keys of all requests at once, which is
ten times slower at 256 streams. PyTorch has a kernel for packed sequences; this passes it the paged cache's
keys.
"""

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from runner.engines.transformers.attention import with_cache

# NOTE: the library assumes that a name with "flash" in it needs no mask and works with CUDA graphs, and that
# a name that ends in 2 or 3 has a package that can also write to the cache.
NAME = "torch_flash_varlen"
_HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256


def install(model: PreTrainedModel) -> None:
    """Use this attention for ``model``, if it is supported and no flash attention package is installed."""
    if is_flash_attn_2_available() or is_flash_attn_3_available() or not _is_fit(model):
        return
    AttentionInterface.register(NAME, flash_per_sequence)
    model.config._attn_implementation = NAME
    model.config.get_text_config()._attn_implementation = NAME


def _is_fit(model: PreTrainedModel) -> bool:
    """Tell whether the kernel fits: half precision, head sizes in eights, no soft caps, no sinks."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    has_extras = getattr(config, "attn_logit_softcapping", None) or any(
        name.endswith(".sinks") for name, _ in model.named_parameters()
    )
    is_plain = model.config._attn_implementation == "sdpa" and not has_extras
    return model.dtype in _HALF and width % 8 == 0 and width <= _LARGEST_HEAD and is_plain


def flash_per_sequence(
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
    window = sliding_window - 1 if sliding_window else -1
    attended = torch.ops.aten._flash_attention_forward(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        kwargs["cu_seq_lens_q"].to(torch.int32),
        kwargs["cu_seq_lens_k"],
        kwargs["max_length_q"],
        kwargs["max_length_k"],
        0.0,
        True,
        False,
        scale=scaling,
        window_size_left=window,
        window_size_right=0 if sliding_window else -1,
    )[0]
    return attended[None], None
