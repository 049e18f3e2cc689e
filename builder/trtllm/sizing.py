"""What a TensorRT-LLM build makes and takes, from the config and the model's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from builder.sizes.building import StepNeeds, build_needs, convert_needs, disk_bytes, quantize_needs
from builder.sizes.gpus import GpuModel
from builder.sizes.memory import (
    CUDA_BYTES,
    DTYPE_BYTES,
    Limits,
    Parallelism,
    Precision,
    engine_bytes,
    weight_bytes,
)
from builder.sizes.model_shape import ModelShape, UnknownShape, shape_of
from builder.sizes.serving import ServingMemory, serving_memory
from builder.sizes.weight_lines import stored_precision
from builder.sizes.words import in_words
from builder.trtllm import model_rules
from builder.trtllm.flags import BUILD, QUANTIZE
from builder.trtllm.summary import ProgramCall, TrtllmBuild
from builder.weights.checkpoint import ModelConfig
from errors.build_config import ModelTooLarge

DEFAULT_MAX_SEQ_LEN = 2048
"""trtllm-build's, in tokens, where the model does not tell its number of positions."""
_SCALED_IN_CONFIG = ("su", "longrope", "llama3")
"""Kinds of rotary scaling whose factor max_position_embeddings has in it already."""
_KV_DTYPES = {"INT8": "int8", "FP8": "fp8"}


@dataclass(frozen=True)
class Sizing:
    """Sizes of one build; ``needs`` by the step's key."""

    shape: ModelShape
    precision: Precision
    split: Parallelism
    limits: Limits
    serving: ServingMemory
    source_bytes: int
    """Of the weights as they are downloaded."""
    checkpoint_bytes: int
    engine_bytes: int
    needs: Mapping[str, StepNeeds]

    @property
    def disk_bytes(self) -> int:
        return disk_bytes(self.source_bytes, self.checkpoint_bytes, self.engine_bytes)


def fit(build: TrtllmBuild, values: Mapping[str, Any]) -> tuple[TrtllmBuild, list[str]]:
    """``build`` as this model makes it, with notes; raises E1204 and E1223 for what the model can't be."""
    build = _of_checkpoint(build, values)
    try:
        shape = shape_of(values)
    except UnknownShape:
        known = model_rules.ModelLimits(max_position_embeddings=positions(values))
        return model_rules.fit_model(build, known)
    known = model_rules.ModelLimits(
        max_position_embeddings=positions(values),
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
    )
    return model_rules.fit_model(build, known)


def positions(values: Mapping[str, Any]) -> int | None:
    """How long a sequence may be, in tokens: the model's positions as trtllm-build scales them."""
    limit = ModelConfig(values).max_position_embeddings
    scaling = values.get("rope_scaling") or values.get("rotary_scaling")
    if limit is None or not isinstance(scaling, dict):
        return limit
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor", 1.0)
    if kind in _SCALED_IN_CONFIG or not isinstance(factor, (int, float)):
        return limit
    return int(limit * factor)


def size(build: TrtllmBuild, values: Mapping[str, Any]) -> Sizing:
    """The sizes of ``build``, which ``fit`` has seen; UnknownShape if the model does not tell its own."""
    shape = shape_of(values)
    precision = _precision(build, values)
    split = Parallelism(build.tp_size, build.pp_size, build.cp_size)
    limits = Limits(
        max_batch_size=build.max_batch_size,
        max_seq_len=build.max_seq_len or DEFAULT_MAX_SEQ_LEN,
        max_num_tokens=build.max_num_tokens,
        max_beam_width=build.max_beam_width,
    )
    serving = serving_memory(shape, precision, split, limits)
    source = weight_bytes(shape, stored_precision(values))
    checkpoint = weight_bytes(shape, precision) if build.checkpoint is not None else 0
    return Sizing(
        shape=shape,
        precision=precision,
        split=split,
        limits=limits,
        serving=serving,
        source_bytes=source,
        checkpoint_bytes=checkpoint,
        engine_bytes=engine_bytes(shape, precision, split),
        needs={call.key: _needs(call, source, checkpoint, serving) for call in build.calls},
    )


def check_fits(sizing: Sizing, build: TrtllmBuild, model: str, gpus: list[GpuModel]) -> None:
    """Raise ModelTooLarge if the weights fit none of ``gpus``; weights that are streamed need not."""
    if not gpus or build.build.value("weight_streaming"):
        return
    largest = max(gpus, key=lambda gpu: gpu.memory_bytes)
    if not sizing.serving.is_possible_on(largest):
        raise ModelTooLarge(
            model=model,
            needed=in_words(sizing.serving.weight_bytes),
            gpu=largest.name,
            present=in_words(largest.memory_bytes),
        )


def _of_checkpoint(build: TrtllmBuild, values: Mapping[str, Any]) -> TrtllmBuild:
    """With what the model tells if it is a TensorRT-LLM checkpoint already."""
    mapping, quantization = values.get("mapping"), values.get("quantization")
    if build.checkpoint is not None or not isinstance(mapping, dict):
        return build
    described = quantization if isinstance(quantization, dict) else {}
    return replace(
        build,
        tp_size=mapping.get("tp_size", 1),
        pp_size=mapping.get("pp_size", 1),
        cp_size=mapping.get("cp_size", 1),
        dtype=values.get("dtype", build.dtype),
        quantization=described.get("quant_algo"),
        kv_cache_quantization=described.get("kv_cache_quant_algo"),
    )


def _precision(build: TrtllmBuild, values: Mapping[str, Any]) -> Precision:
    dtype = build.dtype
    if dtype not in DTYPE_BYTES:
        told = ModelConfig(values).dtype
        dtype = told if told in ("float16", "bfloat16") else "float16"
    algorithm = build.quantization or ""
    bits = 4 if algorithm.startswith("W4") else 8 if algorithm else None
    grouped = any(mark in algorithm for mark in ("AWQ", "GPTQ"))
    return Precision(
        dtype=dtype,
        weight_bits=bits,
        group_size=_group_size(build.checkpoint) if grouped else None,
        kv_dtype=_KV_DTYPES.get(build.kv_cache_quantization or ""),
    )


def _group_size(call: ProgramCall | None) -> int:
    found = call and (call.value("awq_block_size") or call.value("group_size"))
    return found if isinstance(found, int) else 128


def _needs(call: ProgramCall, source: int, checkpoint: int, serving: ServingMemory) -> StepNeeds:
    workers = call.value("workers") or 1
    if call.program == BUILD:
        gpu_bytes = serving.weight_bytes + serving.activation_bytes + CUDA_BYTES
        return build_needs(serving.weight_bytes, gpu_bytes, workers=workers)
    if call.program == QUANTIZE:
        return quantize_needs(source, checkpoint, on_gpu=call.value("device") != "cpu")
    calibrates = call.value("smoothquant") is not None or bool(call.value("int8_kv_cache"))
    on_gpu = calibrates and not call.value("load_model_on_cpu")
    return convert_needs(source, serving.weight_bytes, workers=workers, calibrates=on_gpu)
