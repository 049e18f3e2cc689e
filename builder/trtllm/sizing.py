"""Sizes of a TensorRT-LLM build and its engine, by the formulas of docs/building.md: estimated high."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from builder.program import Needs
from builder.sizes.memory import (
    CUDA_BYTES,
    DTYPE_BYTES,
    GIB,
    KV_FRACTION,
    GpuModel,
    Limits,
    Parallelism,
    Precision,
    ServingMemory,
    serving_memory,
    weight_bytes,
)
from builder.sizes.model_shape import ModelShape, UnknownShape, shape_of
from builder.sizes.precision import stored_precision
from builder.trtllm.flags import BUILD, QUANTIZE
from builder.trtllm.summary import ProgramCall, TrtllmBuild
from builder.weights.checkpoint import ModelConfig
from engine.machine.main_memory import ram_here_bytes
from engine.words import count_in_words, in_words
from errors.build_config import ConflictingBuildKeys, ModelTooLarge, SequenceTooLong

DEFAULT_MAX_SEQ_LEN = 2048
"""Default of trtllm-build, in tokens, for a model without a number of positions."""
_SCALED_IN_CONFIG = ("su", "longrope", "llama3")
"""Kinds of rotary scaling whose factor is included in max_position_embeddings."""
_BUILD_COPIES = 2.5
_TENSORRT_BYTES = 4 * GIB
_CALIBRATION_FACTOR = 1.15
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
    """Size of the downloaded weights."""
    checkpoint_bytes: int
    needs: Mapping[str, Needs]

    @property
    def engine_bytes(self) -> int:
        """Size of all ranks' files, at most."""
        return self.serving.weight_bytes * self.split.world_size

    @property
    def disk_bytes(self) -> int:
        return self.source_bytes + self.checkpoint_bytes + 2 * self.engine_bytes


def fit(build: TrtllmBuild, values: Mapping[str, Any]) -> tuple[TrtllmBuild, list[str]]:
    """Fit ``build`` to this model; return it and notes. Raises E1204, E1223."""
    build = _of_checkpoint(build, values)
    with suppress(UnknownShape):
        _check_split(build, shape_of(values))
    if (limit := positions(values)) is None:
        return build, []
    notes = []
    for name in ("max_seq_len", "max_input_len"):
        value = build.build.value(name)
        if name not in build.build.args or value is None or value <= limit:
            continue
        if not build.fit_lengths:
            raise SequenceTooLong(
                key=f"build.args.{name}",
                value=value,
                limit=limit,
                remedy=f"give at most {limit}, or set build.fit_lengths to true to reduce it",
            )
        notes.append(f"build.args.{name}: {value} reduced to {limit}, the model's max_position_embeddings")
        call = replace(build.build, args={**build.build.args, name: limit})
        build = replace(build, build=call, calls=(*build.calls[:-1], call))
    return replace(build, max_seq_len=build.build.value("max_seq_len") or limit), notes


def _check_split(build: TrtllmBuild, shape: ModelShape) -> None:
    """Check that tp_size GPUs can share the heads, and pp_size GPUs the layers."""
    tp_size, pp_size = build.tp_size, build.pp_size
    heads, kv_heads, layers = shape.num_heads, shape.num_kv_heads, shape.num_layers
    problem = None
    if heads % tp_size:
        problem = f"splits {heads} attention heads over tp_size {tp_size}"
    elif kv_heads % tp_size and tp_size % kv_heads:
        problem = f"splits {kv_heads} key/value heads over tp_size {tp_size}"
    elif layers < pp_size:
        problem = f"splits {layers} layers over pp_size {pp_size}"
    if problem is not None:
        raise ConflictingBuildKeys(problem=problem, remedy="choose sizes that divide the model evenly")


def positions(values: Mapping[str, Any]) -> int | None:
    """Return the maximum length in tokens: the model's positions as trtllm-build scales them."""
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
    """Return the sizes of ``build``, a result of ``fit``. Raises UnknownShape."""
    shape = shape_of(values)
    precision = _precision(build, values)
    split = Parallelism(build.tp_size, build.pp_size, build.cp_size)
    names = ("max_batch_size", "max_num_tokens", "max_beam_width")
    limits = Limits(
        max_seq_len=build.max_seq_len or DEFAULT_MAX_SEQ_LEN,
        **{name: build.build.value(name) for name in names},
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
        needs={call.key: _needs(call, source, checkpoint, serving) for call in build.calls},
    )


def check_fits(sizing: Sizing, build: TrtllmBuild, model: str, gpus: list[GpuModel]) -> None:
    """Raise ModelTooLarge if the weights fit none of ``gpus``, unless they are streamed."""
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
    """Complete ``build`` from the model's config if the model is a TensorRT-LLM checkpoint."""
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
        stored = ModelConfig(values).dtype
        dtype = stored if stored in ("float16", "bfloat16") else "float16"
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


def _needs(call: ProgramCall, source: int, checkpoint: int, serving: ServingMemory) -> Needs:
    workers = call.value("workers") or 1
    if call.program == BUILD:
        gpu_bytes = serving.weight_bytes + serving.activation_bytes + CUDA_BYTES
        return Needs(int(serving.weight_bytes * _BUILD_COPIES) * workers + _TENSORRT_BYTES, gpu_bytes)
    if call.program == QUANTIZE:
        ram_bytes, on_gpu = source + checkpoint, call.value("device") != "cpu"
    else:
        calibrates = call.value("smoothquant") is not None or bool(call.value("int8_kv_cache"))
        ram_bytes = source + serving.weight_bytes * workers
        on_gpu = calibrates and not call.value("load_model_on_cpu")
    return Needs(ram_bytes, int(source * _CALIBRATION_FACTOR) if on_gpu else 0)


def sizing_lines(sizing: Sizing, gpus: Sequence[GpuModel]) -> list[str]:
    return [*_model(sizing), *_engine(sizing), *_serving(sizing, gpus), *_building(sizing)]


def _model(sizing: Sizing) -> Iterator[str]:
    shape = sizing.shape
    heads = f"{shape.num_heads} heads, {shape.num_kv_heads} of keys and values"
    experts = f", {shape.num_experts} experts" if shape.num_experts else ""
    unknown = shape.model_type or "its type"
    about = "" if shape.is_known else f" (counted as Llama-like: {unknown} is not known)"
    yield (
        f"model         {count_in_words(shape.num_parameters)} parameters, {shape.num_layers} layers, "
        f"{heads}{experts}{about}"
    )
    yield f"weights       {in_words(sizing.source_bytes)} to download"


def _engine(sizing: Sizing) -> Iterator[str]:
    split, precision = sizing.split, sizing.precision
    weights = f"{precision.weight_bits}-bit weights" if precision.weight_bits else precision.dtype
    ranks = f" for {split.world_size} GPUs" if split.world_size > 1 else ""
    yield (
        f"engine        about {in_words(sizing.engine_bytes)}{ranks} ({weights}), "
        f"{in_words(sizing.serving.weight_bytes)} of weights per GPU"
    )
    kv, max_seq_len = sizing.serving, sizing.limits.max_seq_len
    per_gpu = " and GPU" if split.world_size > 1 else ""
    longest = f"{in_words(kv.kv_sequence_bytes)} per sequence of {max_seq_len} tokens{per_gpu}"
    dtype = precision.kv_dtype or precision.dtype
    yield f"KV cache      {in_words(kv.kv_token_bytes)} per token, {longest} ({dtype})"


def _serving(sizing: Sizing, gpus: Sequence[GpuModel]) -> Iterator[str]:
    serving, limits = sizing.serving, sizing.limits
    if not gpus:
        least = in_words(serving.least_gpu_bytes)
        yield f"fits          GPUs of about {least} or more; set target.sm to get the number of sequences"
    for gpu in gpus:
        yield f"fits          {gpu.name} ({in_words(gpu.memory_bytes)}): {_fit_words(serving, gpu, limits)}"


def _fit_words(serving: ServingMemory, gpu: GpuModel, limits: Limits) -> str:
    if not serving.is_possible_on(gpu):
        return "no, the weights are too large"
    tokens = serving.kv_tokens(gpu)
    if tokens == 0:
        return "no, nothing is left for the KV cache; lower max_num_tokens or max_batch_size"
    sequences = serving.sequences(gpu)
    at_once = f"{sequences:,} sequences of {limits.max_seq_len} tokens at once"
    if sequences == 0:
        at_once = f"no sequence of {limits.max_seq_len} tokens, but shorter ones"
    elif sequences > limits.max_batch_size:
        at_once = f"{limits.max_batch_size} sequences (max_batch_size) of {limits.max_seq_len} tokens at once"
    return f"{tokens:,} tokens of KV cache ({KV_FRACTION:.0%} of what is free), {at_once}"


def _building(sizing: Sizing) -> Iterator[str]:
    present = ram_here_bytes()
    for key, needs in sizing.needs.items():
        gpu = f", GPU memory about {in_words(needs.gpu_bytes)}" if needs.gpu_bytes else ""
        here = f" (this machine has {in_words(present)})" if needs.ram_bytes > present else ""
        yield f"{key:<14}memory about {in_words(needs.ram_bytes)}{here}{gpu}"
    yield f"disk          about {in_words(sizing.disk_bytes)} with download, checkpoint, engine and tar"
