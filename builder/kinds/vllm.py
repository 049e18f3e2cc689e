"""The ``vllm`` engine: weights, the arguments of vLLM's engine, LoRA adapters by name."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.config import BuildConfig
from builder.config.vllm_arguments import TABLE
from builder.kinds.adapters import adapter_configs, adapter_steps, check_adapters
from builder.kinds.transformers import place_configuration, place_weights
from builder.sizes.fit import size_lines
from builder.steps import EnginePlan, Step, Work, model_steps, place_fast_tokenizer
from builder.weights.checkpoint import ModelConfig, read_config, read_object
from builder.weights.files import place
from builder.weights.model_files import Model
from engine.adapters import RANKS
from engine.kinds import ENGINE_ARGS_NAME
from engine.tar.manifest import EngineFacts, Library

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size", "vllm", "lora"})

_PARALLEL = ("tensor", "pipeline", "data")
"""Kinds of parallelism whose sizes multiply to the number of GPUs."""
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files of AutoGPTQ, AutoAWQ and ModelOpt that describe a quantization instead of config.json."""


class Plan(EnginePlan):
    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        self._arguments = TABLE.read(config)
        check_adapters(config)

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        max_seq_len = _max_seq_len(self._arguments, ModelConfig(values))
        dtype = _dtype(self._arguments)
        return size_lines(values, dtype, max_seq_len, needs_gpu=True, embeds=self.embeds)

    def steps(self) -> Sequence[Step]:
        given = (f"{name}={value}" for name, value in sorted(self._arguments.items()))
        listed = ", ".join(given) or "vLLM's defaults"
        return [
            *model_steps(self.config),
            Step("check model", _check_model),
            Step("weights (safetensors; quantized weights unchanged)", place_weights),
            Step("tokenizer", place_fast_tokenizer),
            *adapter_steps(self.config),
            Step(f"{ENGINE_ARGS_NAME} for vLLM {TABLE.version} ({listed})", _write_arguments),
        ]


def _check_model(work: Work) -> None:
    arguments = TABLE.read(work.config)
    model_config = read_config(work.model)
    max_seq_len = _max_seq_len(arguments, model_config)
    quantization = arguments.get("quantization") or find_quantization(work.model, model_config)
    work.facts = EngineFacts(
        engine_kind="vllm",
        library=Library(name="vllm", version=TABLE.version),
        world_size=math.prod(arguments.get(f"{each}_parallel_size", 1) for each in _PARALLEL),
        dtype=_dtype(arguments) or model_config.dtype,
        quantization=quantization,
        max_batch_size=arguments.get("max_num_seqs"),
        max_input_len=max_seq_len - 1 if max_seq_len is not None and max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
    place_configuration(work)
    place_quantization(work)


def _max_seq_len(arguments: Mapping[str, Any], model: ModelConfig) -> int | None:
    """Return the limit in tokens; None if unknown, or if vLLM chooses what fits (-1)."""
    asked = arguments.get("max_model_len")
    if asked == -1:
        return None
    if "hf_overrides" in arguments:
        return asked or model.max_position_embeddings
    return model.max_seq_len(asked, " (or vllm.hf_overrides must change that)")


def _dtype(arguments: Mapping[str, Any]) -> str | None:
    names = {"half": "float16", "float": "float32", "auto": None}
    asked = arguments.get("dtype")
    return names.get(asked, asked) if asked is not None else None


def place_quantization(work: Work) -> None:
    """Place the files that describe a quantization."""
    for name in _QUANTIZATION_FILES:
        if name in work.model.files:
            place(work.model.files[name], work.directory / name)


def find_quantization(model: Model, model_config: ModelConfig) -> str | None:
    """Return the method of the model's quantization, from the first file that tells it."""
    if model_config.quantization is not None:
        return model_config.quantization
    found = next((name for name in _QUANTIZATION_FILES if name in model.files), None)
    if found is None:
        return None
    described = read_object(model, found)
    inner = described.get("quantization")
    method = described.get("quant_method") or (inner.get("quant_algo") if isinstance(inner, dict) else None)
    if method:
        return str(method).lower()
    return {"quantize_config.json": "gptq", "quant_config.json": "awq"}.get(found)


def _write_arguments(work: Work) -> None:
    arguments = TABLE.read(work.config)
    if work.config.lora:
        arguments = {**_lora_arguments(work), **arguments, "enable_lora": True}
    text = json.dumps(arguments, indent=2, sort_keys=True) + "\n"
    (work.directory / ENGINE_ARGS_NAME).write_text(text)


def _lora_arguments(work: Work) -> dict[str, Any]:
    """Return the capacity for all adapters at once and for the largest rank among them."""
    ranks = [adapter["r"] for adapter in adapter_configs(work)]
    room = next(rank for rank in RANKS if rank >= max(ranks))
    return {"enable_lora": True, "max_loras": len(ranks), "max_lora_rank": room}
