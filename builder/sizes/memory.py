"""What a model takes, in bytes: its weights, its KV cache, an engine while it is built and while it serves.

Weights and KV cache are exact (but for a percent of padding and scales). Activations, and what building
takes, are estimates on the safe side: TensorRT decides them by the kernels it finds fastest.

    weights       linear matrices x weight_bits / 8 + everything else x dtype; a group of quantized weights
                  adds a 16-bit scale
    of a rank     the linear matrices and the output layer are split by tp, the layers by pp; the embedding is
                  whole in the first stage; context parallelism splits nothing of these
    KV cache      2 x layers x KV heads x head size x bytes, per token; a rank has 1/pp of the layers and 1/tp
                  of the heads, but never less than one head. With latent attention the latent vector alone
    activations   max_num_tokens x (3 x hidden + QKV and MLP of a rank) x dtype, plus twice the float32 logits
                  of max_batch_size x max_beam_width sequences
    sequences     0.9 (TensorRT-LLM's default fraction) of what weights, activations and 1 GiB for CUDA leave
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from builder.sizes.gpus import GIB, GpuModel
from builder.sizes.model_shape import ModelShape

KV_FRACTION = 0.9
CUDA_BYTES = GIB
"""CUDA's context, NCCL's and cuBLAS' buffers."""
BLOCK_TOKENS = 64
"""The KV cache is handed out in blocks of so many tokens (trtllm-build's tokens_per_block)."""

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
_MLP_MATRICES_HELD = 3


@dataclass(frozen=True)
class Precision:
    """How numbers are stored: ``dtype`` unless quantized, linear matrices in ``weight_bits``."""

    dtype: str = "float16"
    weight_bits: int | None = None
    """None: as ``dtype``."""
    group_size: int | None = None
    """So many quantized weights share a scale; None: a whole column does."""
    kv_dtype: str | None = None
    """None: as ``dtype``."""

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes(self) -> int:
        return DTYPE_BYTES[self.kv_dtype or self.dtype]

    def linear_bytes(self, num_weights: int) -> int:
        """Of linear matrices, with their scales."""
        if self.weight_bits is None:
            return num_weights * self.dtype_bytes
        scales = 2 * num_weights // self.group_size if self.group_size else 0
        return num_weights * self.weight_bits // 8 + scales


@dataclass(frozen=True)
class Parallelism:
    """How many ways a model is split: by matrices, by layers, by tokens of the context."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size * self.cp_size


@dataclass(frozen=True)
class Limits:
    """What an engine is compiled for; lengths in tokens."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int = 1


def weight_bytes(shape: ModelShape, precision: Precision) -> int:
    """Of a whole checkpoint."""
    plain = shape.other_parameters + shape.embedding_parameters + shape.head_parameters
    return precision.linear_bytes(shape.linear_parameters) + plain * precision.dtype_bytes


def rank_weight_bytes(shape: ModelShape, precision: Precision, split: Parallelism) -> int:
    """Of the rank that holds most. A tied output layer is counted: an engine may hold it apart."""
    layers = math.ceil(shape.num_layers / split.pp_size) / shape.num_layers
    linear = precision.linear_bytes(math.ceil(shape.linear_parameters * layers / split.tp_size))
    other = math.ceil(shape.other_parameters * layers)
    first = shape.embedding_parameters
    last = math.ceil(shape.embedding_parameters / split.tp_size)
    ends = first + last if split.pp_size == 1 else max(first, last)
    return linear + (other + ends) * precision.dtype_bytes


def engine_bytes(shape: ModelShape, precision: Precision, split: Parallelism) -> int:
    """Of all ranks' engine files, at most."""
    return rank_weight_bytes(shape, precision, split) * split.world_size


def kv_bytes_per_token(shape: ModelShape, precision: Precision, split: Parallelism = Parallelism()) -> int:
    """Of one rank's KV cache for one token."""
    layers = math.ceil(shape.num_layers / split.pp_size)
    if shape.latent_size is not None:
        return layers * shape.latent_size * precision.kv_bytes
    heads = math.ceil(shape.num_kv_heads / split.tp_size)
    return 2 * layers * heads * shape.head_size * precision.kv_bytes


def kv_bytes_per_sequence(kv_bytes_of_token: int, length_tokens: int) -> int:
    """For a sequence of ``length_tokens``, in whole blocks."""
    return kv_bytes_of_token * math.ceil(length_tokens / BLOCK_TOKENS) * BLOCK_TOKENS


def activation_bytes(shape: ModelShape, precision: Precision, split: Parallelism, limits: Limits) -> int:
    """Of one rank while it computes its largest batch, about."""
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size / split.tp_size
    mlp = _MLP_MATRICES_HELD * shape.intermediate_size / split.tp_size
    of_tokens = limits.max_num_tokens * (3 * shape.hidden_size + heads + mlp) * precision.dtype_bytes
    logits = 2 * 4 * limits.max_batch_size * limits.max_beam_width * shape.vocab_size
    return math.ceil(of_tokens + logits)


@dataclass(frozen=True)
class ServingMemory:
    """What one rank of an engine takes of its GPU."""

    weight_bytes: int
    activation_bytes: int
    kv_token_bytes: int
    kv_sequence_bytes: int
    """Of the longest sequence."""

    def is_possible_on(self, gpu: GpuModel) -> bool:
        """Whether the weights alone fit; anything less is certain to fail."""
        return self.weight_bytes < gpu.memory_bytes

    def kv_tokens(self, gpu: GpuModel) -> int:
        """How many tokens of KV cache fit beside everything else."""
        free_bytes = gpu.memory_bytes - self.weight_bytes - self.activation_bytes - CUDA_BYTES
        return max(int(free_bytes * KV_FRACTION) // self.kv_token_bytes, 0)

    @property
    def least_gpu_bytes(self) -> int:
        """Of a GPU that serves one longest sequence."""
        beside = self.weight_bytes + self.activation_bytes + CUDA_BYTES
        return beside + int(self.kv_sequence_bytes / KV_FRACTION)

    def sequences(self, gpu: GpuModel) -> int:
        """How many sequences of the longest length fit at once."""
        return self.kv_tokens(gpu) * self.kv_token_bytes // self.kv_sequence_bytes


def serving_memory(
    shape: ModelShape, precision: Precision, split: Parallelism, limits: Limits
) -> ServingMemory:
    """Of the rank that holds most."""
    of_token = kv_bytes_per_token(shape, precision, split)
    return ServingMemory(
        weight_bytes=rank_weight_bytes(shape, precision, split),
        activation_bytes=activation_bytes(shape, precision, split, limits),
        kv_token_bytes=of_token,
        kv_sequence_bytes=kv_bytes_per_sequence(of_token, limits.max_seq_len),
    )
