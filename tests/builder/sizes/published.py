"""Published models: the part of their ``config.json`` that sizes depend on, and their number of parameters.

The numbers are those the models' pages on the Hugging Face Hub tell (from their safetensors), except where a
paper rounds them.
"""

from typing import Any

LLAMA_2_7B: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "vocab_size": 32000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "torch_dtype": "float16",
}  # fmt: skip
LLAMA_2_70B = {
    **LLAMA_2_7B, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80, "num_key_value_heads": 8,
}  # fmt: skip
LLAMA_3_8B = {
    **LLAMA_2_7B, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_3_70B = {
    **LLAMA_2_70B, "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
MISTRAL_7B = {**LLAMA_3_8B, "model_type": "mistral", "vocab_size": 32000, "max_position_embeddings": 32768}
MIXTRAL_8X7B = {**MISTRAL_7B, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
    "vocab_size": 201088, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}

PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "llama-2-7b": (LLAMA_2_7B, 6_738_415_616),
    "llama-2-70b": (LLAMA_2_70B, 68_976_648_192),
    "llama-3-8b": (LLAMA_3_8B, 8_030_261_248),
    "mixtral-8x7b": (MIXTRAL_8X7B, 46_702_792_704),
    "gpt2": (GPT2, 124_439_808),
    "starcoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576,
         "n_positions": 8192, "vocab_size": 49152, "multi_query": True},
        15_517_456_384,
    ),
    "dbrx": (
        {"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100352,
         "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8, "rope_theta": 500000},
         "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        131_596_523_520,
    ),
    "deepseek-v2-lite": (
        {"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
         "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 1,
         "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "vocab_size": 102400, "tie_word_embeddings": False},
        15_706_484_224,
    ),
    "chatglm3-6b": (
        {"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28,
         "num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True,
         "multi_query_group_num": 2, "padded_vocab_size": 65024, "add_qkv_bias": True, "seq_length": 8192,
         "tie_word_embeddings": False},
        6_243_584_000,
    ),
    "qwen-7b": (
        {"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
         "num_attention_heads": 32, "kv_channels": 128, "vocab_size": 151936, "tie_word_embeddings": False},
        7_721_324_544,
    ),
    "internlm2-7b": (
        {"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544,
         "tie_word_embeddings": False, "bias": False},
        7_737_708_544,
    ),
}  # fmt: skip
"""Families that ``test_model_shape_transformers`` counts exactly have one here, if any."""
