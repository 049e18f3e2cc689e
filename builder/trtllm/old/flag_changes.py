"""What became, in TensorRT-LLM 0.16, of the flags and scripts of 0.5 to 0.15.

Read from the examples' ``build.py``, ``hf_gpt_convert.py``, ``hf_llama_convert.py``, ``quantize.py`` and from
trtllm-build's releases. A ``Fate`` is one row; flags that only got a new name are rows, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Place = Literal["here", "checkpoint", "build"]
Kind = Literal["value", "plugin", "toggle", "switch", "dtype", "kv_cache_type", "path_stem"]

HF_CONVERTERS = re.compile(r"hf_\w+_convert\.py|nemo_ckpt_convert\.py|hf_convert\.py")
"""The scripts that convert_checkpoint.py replaced; they wrote into ``<out-dir>/<tensor parallelism>-gpu``."""


@dataclass(frozen=True)
class Fate:
    """``to`` is today's flag, None for one that is gone; ``place`` the step that has it; ``why`` is told."""

    to: str | None
    why: str = ""
    kind: Kind = "value"
    place: Place = "here"


_SHAPE = Fate(None, "the checkpoint's config.json tells")
_AUTOMATIC = Fate(None, "chosen automatically")
_PLAIN = Fate(None, "TensorRT does without the plugin")


def _moved(to: str, kind: Kind = "value") -> Fate:
    return Fate(to, "decided at conversion", kind, "checkpoint")


BUILD_FATES: Mapping[str, Fate] = {
    **dict.fromkeys(
        (
            "hidden_act", "n_positions", "n_layer", "n_head", "n_kv_head", "n_embd", "vocab_size",
            "inter_size", "rotary_pct", "rotary_base", "rotary_scaling", "multi_query_mode", "no_bias",
            "bias", "rms_norm_eps", "multiple_of", "ffn_dim_multiplier", "moe_num_experts", "moe_top_k",
            "moe_tp_mode", "moe_renorm_mode", "do_layer_norm_before", "model_version", "chatglm_version",
            "num_kv_heads", "gpt_variant", "seq_length", "new_decoder_architecture",
        ),
        _SHAPE,
    ),
    **dict.fromkeys(
        (
            "use_layernorm_plugin", "use_rmsnorm_plugin", "use_lookup_plugin", "lookup_plugin",
            "layernorm_quantization_plugin", "rmsnorm_quantization_plugin", "smooth_quant_gemm_plugin",
            "identity_plugin", "weight_only_quant_matmul_plugin", "weight_only_groupwise_quant_matmul_plugin",
            "quantize_per_token_plugin", "quantize_tensor_plugin",
        ),
        _PLAIN,
    ),
    **dict.fromkeys(
        ("use_custom_all_reduce", "enable_xqa", "use_embedding_sharing", "builder_opt", "opt_batch_size"),
        _AUTOMATIC,
    ),
    "strongly_typed": Fate(None, "always on"),
    **{
        name: _moved(name)
        for name in (
            "pp_size", "cp_size", "weight_only_precision", "group_size", "embedding_sharding_dim",
            "meta_ckpt_dir", "smoothquant", "quant_ckpt_path",
        )
    },
    **{
        name: _moved(name, "switch")
        for name in (
            "use_weight_only", "disable_weight_only_quant_plugin", "per_channel", "per_token", "per_group",
            "int8_kv_cache", "fp8_kv_cache", "use_parallel_embedding", "load_by_shard", "load_model_on_cpu",
        )
    },
    "tp_size": _moved("tp_size"),
    "world_size": _moved("tp_size"),
    "dtype": _moved("dtype", "dtype"),
    "enable_fp8": _moved("use_fp8", "switch"),
    "use_smooth_quant": _moved("smoothquant"),
    "use_inflight_batching": Fate(None, "packed input and a paged KV cache are the default"),
    "use_gpt_attention_plugin": Fate("gpt_attention_plugin", kind="plugin"),
    "use_gemm_plugin": Fate("gemm_plugin", kind="plugin"),
    "use_lora_plugin": Fate("lora_plugin", kind="plugin"),
    "use_bert_attention_plugin": Fate("bert_attention_plugin", kind="plugin"),
    "paged_kv_cache": Fate("kv_cache_type", kind="kv_cache_type"),
    "enable_context_fmha": Fate("context_fmha", kind="toggle"),
    "enable_context_fmha_fp32_acc": Fate(None, "an option of the server now: enable_context_fmha_fp32_acc"),
    "context_fmha_fp32_acc": Fate(None, "an option of the server now: enable_context_fmha_fp32_acc"),
    "multi_block_mode": Fate(None, "an option of the server now, on by default"),
    "attention_qk_half_accumulation": Fate(None, "no longer there"),
    "use_context_fmha_for_generation": Fate(None, "no longer there"),
    "quantized_fp8_model_path": Fate(None, "the checkpoint is quantized itself"),
    "quantize_lm_head": Fate(None, "quantize.py decides"),
    "random_seed": Fate(None, "only used without weights"),
    "debug_mode": Fate("enable_debug_output", kind="switch"),
    "visualize": Fate("visualize_network", kind="switch"),
    "timing_cache": Fate("input_timing_cache"),
    "hf_lora_dir": Fate("lora_dir"),
    "builder_force_num_profiles": Fate(None, "the variable BUILDER_FORCE_NUM_PROFILES sets it"),
    "use_prompt_tuning": Fate(None, "max_prompt_embedding_table_size turns it on"),
}  # fmt: skip
"""Flags of ``build.py`` and of earlier trtllm-builds, but for those that depend on others (``old_build``)."""

CONVERT_FATES: Mapping[str, Fate] = {
    "in-file": Fate("model_dir"),
    "out-dir": Fate("output_dir"),
    "tensor-parallelism": Fate("tp_size"),
    "infer-gpu-num": Fate("tp_size"),
    "world_size": Fate("tp_size"),
    "processes": Fate("workers"),
    "storage-type": Fate("dtype", kind="dtype"),
    "data_type": Fate("dtype", kind="dtype"),
    "calibrate-kv-cache": Fate("int8_kv_cache", kind="switch"),
    "model": Fate("gpt_variant"),
    "enable_fp8": Fate("use_fp8", kind="switch"),
    "convert-model-on-cpu": Fate(None, "load_model_on_cpu decides"),
    "multi-query-mode": Fate(None, "the model's config.json tells"),
    "use_embedding_sharing": _AUTOMATIC,
    "use_gemm_woq_plugin": _AUTOMATIC,
    "rotary_scaling": _SHAPE,
    "moe_tp_mode": Fate(None, "moe_tp_size and moe_ep_size decide"),
    "load_nemo_on_gpu": Fate(None, "load_model_on_cpu decides"),
    "ammo_quant_ckpt_path": Fate("quant_ckpt_path"),
    "use_fused_mlp": Fate("use_fused_mlp", "now trtllm-build's", place="build"),
    "use_prompt_tuning": Fate(None, "max_prompt_embedding_table_size of the build turns it on"),
    "hf_lora_dir": Fate("lora_dir", "now trtllm-build's", place="build"),
    "lora_target_modules": Fate("lora_target_modules", "now trtllm-build's", place="build"),
    "max_lora_rank": Fate("max_lora_rank", "now trtllm-build's", place="build"),
}

QUANTIZE_FATES: Mapping[str, Fate] = {
    "export_path": Fate("output_dir", kind="path_stem"),
    "group_size": Fate("awq_block_size"),
    "max_seq_length": Fate("tokenizer_max_seq_length"),
    "quantize_lm_head": Fate(None, "no longer there"),
}

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}
