"""The ``tensorrt_llm_pytorch`` engine: weights, arguments of TensorRT-LLM's ``LLM``, LoRA adapters by name.

Nothing is compiled: TensorRT-LLM 1.x runs the model's weights by PyTorch, on any GPU that it supports.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.config import BuildConfig
from builder.config.llm_arguments import TABLE
from builder.kinds.adapters import adapter_configs, adapter_steps, check_adapters
from builder.kinds.transformers import place_configuration, place_weights
from builder.kinds.vllm import find_quantization, place_quantization
from builder.sizes.fit import size_lines
from builder.steps import EnginePlan, Step, Work, model_steps, place_fast_tokenizer
from builder.weights.checkpoint import ModelConfig, read_config
from engine.kinds import LLM_ARGS_NAME
from engine.pooling import MODULES_NAME
from engine.tar.manifest import EngineFacts, Library
from errors.build_config import ConflictingBuildKeys

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size", "llm_args", "lora"})

_LORA_MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "up_proj": "mlp_gate",
    "gate_up_proj": "mlp_gate_up",
}
"""Hugging Face's names of the modules that an adapter changes, and TensorRT-LLM's."""


class Plan(EnginePlan):
    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        self._arguments = _arguments(config)
        check_adapters(config)

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        max_seq_len = ModelConfig(values).max_seq_len(self._arguments.get("max_seq_len"))
        dtype = _dtype(self._arguments)
        return size_lines(values, dtype, max_seq_len, needs_gpu=True, embeds=self.embeds, section="llm_args")

    def steps(self) -> Sequence[Step]:
        listed = ", ".join(f"{name}={value}" for name, value in sorted(self._arguments.items()))
        return [
            *model_steps(self.config),
            Step("check model", _check_model),
            Step("weights (safetensors; quantized weights unchanged)", place_weights),
            Step("tokenizer", place_fast_tokenizer),
            *adapter_steps(self.config),
            Step(f"{LLM_ARGS_NAME} for TensorRT-LLM {TABLE.version} ({listed})", _write_arguments),
        ]


def _arguments(config: BuildConfig) -> dict[str, Any]:
    """Return the arguments of ``LLM``. Raises E1202, E1203 and E1204."""
    arguments = TABLE.read(config)
    if (arguments.get("lora_config") or {}).get("lora_dir"):
        raise ConflictingBuildKeys(
            problem="gives llm_args.lora_config.lora_dir", remedy="name the adapters under lora instead"
        )
    # The library's own default refuses prompts of more than max_num_tokens.
    return {"enable_chunked_prefill": True, **arguments}


def _check_model(work: Work) -> None:
    if MODULES_NAME in work.model.files:
        raise work.model.unusable("it makes embeddings, which the engines vllm and transformers do")
    arguments = _arguments(work.config)
    model_config = read_config(work.model)
    max_seq_len = model_config.max_seq_len(arguments.get("max_seq_len"))
    if max_seq_len is None:
        raise work.model.unusable("its config.json has no max_position_embeddings; give max_seq_len")
    parts = (arguments.get(f"{name}_parallel_size", 1) for name in ("tensor", "pipeline", "context"))
    work.facts = EngineFacts(
        engine_kind="tensorrt_llm_pytorch",
        library=Library(name="tensorrt_llm", version=TABLE.version),
        world_size=math.prod(parts),
        dtype=_dtype(arguments) or model_config.dtype,
        quantization=find_quantization(work.model, model_config),
        max_batch_size=arguments.get("max_batch_size"),
        max_input_len=max_seq_len - 1 if max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
    place_configuration(work)
    place_quantization(work)


def _dtype(arguments: Mapping[str, Any]) -> str | None:
    asked = arguments.get("dtype")
    return None if asked == "auto" else asked


def _write_arguments(work: Work) -> None:
    assert work.facts is not None
    arguments = {"max_seq_len": work.facts.max_seq_len, **_arguments(work.config)}
    if work.config.lora:
        arguments["lora_config"] = {**_lora_config(work), **(arguments.get("lora_config") or {})}
    text = json.dumps(arguments, indent=2, sort_keys=True) + "\n"
    (work.directory / LLM_ARGS_NAME).write_text(text)


def _lora_config(work: Work) -> dict[str, Any]:
    """Return the capacity for all adapters at once, their largest rank and the modules that they change."""
    configs = adapter_configs(work)
    names = {name for config in configs for name in config.get("target_modules") or ()}
    if unknown := sorted(names - _LORA_MODULES.keys()):
        raise work.model.unusable(
            f"an adapter changes {', '.join(unknown)}, whose names in TensorRT-LLM are not known"
        )
    return {
        "lora_target_modules": sorted(_LORA_MODULES[name] for name in names),
        "max_lora_rank": max(config["r"] for config in configs),
        "max_loras": len(configs),
        "max_cpu_loras": len(configs),
    }
