"""The config.json of the models that the examples and the configs of old name: what a plan reads of them."""

from __future__ import annotations

from typing import Any


def _gpt2(n_embd: int, n_head: int, n_layer: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": n_embd, "n_head": n_head,
        "n_layer": n_layer, "n_positions": 1024, "vocab_size": 50257,
    }  # fmt: skip


def _llama(hidden: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "vocab_size": 32000, "max_position_embeddings": 4096,
        "torch_dtype": "float16", **more,
    }  # fmt: skip


MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    "sshleifer/tiny-gpt2": _gpt2(2, 2, 2),
    "gpt2-medium": _gpt2(1024, 16, 24),
    "bigcode/starcoder": {
        "architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48,
        "n_layer": 40, "n_inner": 24576, "n_positions": 8192, "vocab_size": 49152, "multi_query": True,
    },
    "meta-llama/Llama-2-7b-chat-hf": _llama(4096, 32, 32, 32, 11008),
    "meta-llama/Llama-2-13b-chat-hf": _llama(5120, 40, 40, 40, 13824),
    "meta-llama/Llama-2-70b-hf": _llama(8192, 80, 64, 8, 28672),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(
        4096, 32, 32, 8, 14336, vocab_size=128256, max_position_embeddings=131072, torch_dtype="bfloat16"
    ),
    "mistralai/Mistral-7B-Instruct-v0.2": _llama(
        4096, 32, 32, 8, 14336, max_position_embeddings=32768, architectures=["MistralForCausalLM"],
        model_type="mistral", torch_dtype="bfloat16",
    ),
}  # fmt: skip
MODEL_CONFIGS["meta-llama/Meta-Llama-3.1-8B-Instruct"] = MODEL_CONFIGS["meta-llama/Llama-3.1-8B-Instruct"]
