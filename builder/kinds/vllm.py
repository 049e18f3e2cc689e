"""The ``vllm`` engine: weights, the arguments of vLLM's engine, LoRA adapters by name."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.config import BuildConfig, LoraAdapter
from builder.config.vllm_arguments import engine_arguments, library_version
from builder.kinds.transformers import place_configuration, place_weights
from builder.sizes.fit import size_lines
from builder.steps import EnginePlan, Step, Work, model_steps, place_fast_tokenizer
from builder.weights.checkpoint import ModelConfig, read_config, read_object
from builder.weights.files import place
from builder.weights.model_files import Model
from builder.weights.weights import obtain_files
from engine.adapters import CONFIG_NAME, NAMES, RANKS
from engine.kinds import ENGINE_ARGS_NAME, LORA_FOLDER
from engine.tar.manifest import EngineFacts, Library
from errors.build_config import ConflictingBuildKeys

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size", "vllm", "lora"})

_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files of AutoGPTQ, AutoAWQ and ModelOpt that describe a quantization instead of config.json."""


class Plan(EnginePlan):
    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        self._arguments = engine_arguments(config)
        _check_adapters(config.lora or {})

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        max_seq_len = _max_seq_len(self._arguments, ModelConfig(values))
        dtype = _dtype(self._arguments)
        return size_lines(values, dtype, max_seq_len, needs_gpu=True, embeds=self.embeds)

    def steps(self) -> Sequence[Step]:
        given = (f"{name}={value}" for name, value in sorted(self._arguments.items()))
        listed = ", ".join(given) or "vLLM's defaults"
        adapters = [
            Step(
                f"LoRA adapter {name} ({adapter.model_path or adapter.model_id})",
                _adapter_step(name, adapter),
            )
            for name, adapter in sorted((self.config.lora or {}).items())
        ]
        return [
            *model_steps(self.config),
            Step("check model", _check_model),
            Step("weights (safetensors; quantized weights unchanged)", place_weights),
            Step("tokenizer", place_fast_tokenizer),
            *adapters,
            Step(f"{ENGINE_ARGS_NAME} for vLLM {library_version()} ({listed})", _write_arguments),
        ]


def _check_model(work: Work) -> None:
    arguments = engine_arguments(work.config)
    model_config = read_config(work.model)
    max_seq_len = _max_seq_len(arguments, model_config)
    quantization = arguments.get("quantization") or _quantization(work.model, model_config)
    work.facts = EngineFacts(
        engine_kind="vllm",
        library=Library(name="vllm", version=library_version()),
        world_size=arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1),
        dtype=_dtype(arguments) or model_config.dtype,
        quantization=quantization,
        max_batch_size=arguments.get("max_num_seqs"),
        max_input_len=max_seq_len - 1 if max_seq_len is not None and max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
    place_configuration(work)
    for name in _QUANTIZATION_FILES:
        if name in work.model.files:
            place(work.model.files[name], work.directory / name)


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


def _quantization(model: Model, model_config: ModelConfig) -> str | None:
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


def _check_adapters(adapters: Mapping[str, LoraAdapter]) -> None:
    for name, adapter in adapters.items():
        if (adapter.model_id is None) == (adapter.model_path is None):
            raise ConflictingBuildKeys(
                problem=f"does not give exactly one source for lora.{name}",
                remedy="give it one of model_id and model_path",
            )


def _adapter_step(name: str, adapter: LoraAdapter) -> Any:
    def run(work: Work) -> None:
        files = obtain_files(adapter, NAMES, work)
        folder = work.directory / LORA_FOLDER / name
        folder.mkdir(parents=True)
        for file_name, path in files.files.items():
            place(path, folder / file_name)
        rank = read_object(files, CONFIG_NAME).get("r")
        if not isinstance(rank, int) or not 1 <= rank <= RANKS[-1]:
            raise files.unusable(
                f"its {CONFIG_NAME} has the rank (r) {rank!r}, not one from 1 to {RANKS[-1]}"
            )

    return run


def _write_arguments(work: Work) -> None:
    arguments = engine_arguments(work.config)
    if work.config.lora:
        arguments = {**_lora_arguments(work), **arguments, "enable_lora": True}
    text = json.dumps(arguments, indent=2, sort_keys=True) + "\n"
    (work.directory / ENGINE_ARGS_NAME).write_text(text)


def _lora_arguments(work: Work) -> dict[str, Any]:
    """Return the capacity for all adapters at once and for the largest rank among them."""
    assert work.config.lora is not None
    folders = [work.directory / LORA_FOLDER / name for name in work.config.lora]
    ranks = [json.loads((folder / CONFIG_NAME).read_bytes())["r"] for folder in folders]
    room = next(rank for rank in RANKS if rank >= max(ranks))
    return {"enable_lora": True, "max_loras": len(folders), "max_lora_rank": room}
