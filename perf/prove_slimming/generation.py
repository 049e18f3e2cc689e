"""Greedy generation of a small Llama with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from check import Check


def checks(device: str) -> Iterator[Check]:
    """One check per type and attention."""
    for attention in ("sdpa", "eager"):
        for dtype in (torch.bfloat16, torch.float32):
            name = f"generation Llama {attention} {dtype}"
            yield name, partial(_generated, attention, dtype, device)


def _generated(attention: str, dtype: torch.dtype, device: str) -> object:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=4, attn_implementation=attention,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype).eval()
        prompts = torch.randint(3, 8000, (8, 48))
        mask = torch.ones_like(prompts)
    ids = model.generate(prompts, attention_mask=mask, max_new_tokens=64, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        return ids, model(ids).logits
