"""The sizes of a build as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder.sizes.building import ram_here_bytes
from builder.sizes.gpus import GpuModel
from builder.sizes.memory import KV_FRACTION, Limits
from builder.sizes.serving import ServingMemory
from builder.sizes.words import count_in_words, in_words
from builder.trtllm.sizing import Sizing


def sizing_lines(sizing: Sizing, gpus: Sequence[GpuModel]) -> list[str]:
    """``gpus`` are those that the engine may run on."""
    return [*_model(sizing), *_engine(sizing), *_serving(sizing, gpus), *_building(sizing)]


def _model(sizing: Sizing) -> Iterator[str]:
    shape = sizing.shape
    heads = f"{shape.num_heads} heads, {shape.num_kv_heads} of keys and values"
    experts = f", {shape.num_experts} experts" if shape.num_experts else ""
    about = (
        "" if shape.is_exact else f" (counted as Llama-like: {shape.model_type or 'its type'} is not known)"
    )
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
        yield f"fits          GPUs of about {least} and more; give target.sm to learn how many sequences"
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
        short = present is not None and needs.ram_bytes > present
        here = f" (this machine has {in_words(present)})" if short and present is not None else ""
        yield f"{key:<14}memory about {in_words(needs.ram_bytes)}{here}{gpu}"
    yield f"disk          about {in_words(sizing.disk_bytes)} with download, checkpoint, engine and tar"
