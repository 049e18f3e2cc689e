"""Memory of a model and its engine, in bytes, by the formulas of docs/building.md.

Weights and KV cache are exact to about a percent (padding and scales). Activations are high estimates, as
TensorRT decides them by the kernels that it finds fastest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from builder.sizes.model_shape import ModelShape
from engine.machine.gpu import visible_gpus

GIB = 1 << 30
KV_FRACTION = 0.9
CUDA_BYTES = GIB
"""Buffers of CUDA's context, NCCL and cuBLAS."""
BLOCK_TOKENS = 64
"""Size of a block of the KV cache (trtllm-build's tokens_per_block)."""

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
_KNOWN: Mapping[int, Mapping[str, int]] = {
    80: {"A30": 24, "A100 40GB": 40, "A100 80GB": 80},
    86: {"RTX 30xx, A10": 24, "A40, RTX A6000": 48},
    89: {"L4, RTX 40xx": 24, "L40S": 48},
    90: {"H100": 80, "GH200": 96, "H200": 141},
}
"""GPUs by SM and name, in GiB as sold: smallest first."""
_MLP_MATRICES_HELD = 3


@dataclass(frozen=True)
class GpuModel:
    name: str
    memory_bytes: int


def gpus_of(sm: int) -> list[GpuModel]:
    """Return the usual GPUs of architecture ``sm``, smallest memory first; empty for an unknown one."""
    return [GpuModel(name, size_gib * GIB) for name, size_gib in _KNOWN.get(sm, {}).items()]


def gpus_here() -> list[GpuModel]:
    """Return the visible GPUs whose memory is known."""
    return [
        GpuModel(gpu.name or "GPU", gpu.total_bytes) for gpu in visible_gpus() if gpu.total_bytes is not None
    ]


@dataclass(frozen=True)
class Precision:
    """How numbers are stored: linear matrices in ``weight_bits``, everything else as ``dtype``."""

    dtype: str = "float16"
    weight_bits: int | None = None
    """Bits of a weight; None: as ``dtype``."""
    group_size: int | None = None
    """Number of quantized weights that share a scale; None: a whole column."""
    kv_dtype: str | None = None
    """Data type of the KV cache; None: as ``dtype``."""
    kv_bits: float | None = None
    """Bits of a number in it, with its share of scales; None: those of the data type."""
    gguf_type: str | None = None
    """Commonest type of a GGUF file's weights, if the engine holds them as they are in the file."""
    gguf_bytes: int = 0
    """Size of these weights."""
    scale: float = 1.0
    """Size of all weights, as a multiple of what the shape tells; see ``sizes.precision.measured``."""

    @property
    def words(self) -> str:
        """Description of the weights for people."""
        return self.gguf_type or (self.dtype if self.weight_bits is None else f"{self.weight_bits} bits")

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def kv_bytes(self) -> float:
        return DTYPE_BYTES[self.kv_dtype or self.dtype] if self.kv_bits is None else self.kv_bits / 8

    def linear_bytes(self, num_weights: int) -> int:
        """Return the size of linear matrices, with their scales."""
        if self.weight_bits is None:
            return num_weights * self.dtype_bytes
        scales = 2 * num_weights // self.group_size if self.group_size else 0
        return num_weights * self.weight_bits // 8 + scales


@dataclass(frozen=True)
class Parallelism:
    """Parallelism over tensors (tp), layers (pp) and the tokens of the context (cp)."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size * self.cp_size


@dataclass(frozen=True)
class Limits:
    """Limits that an engine is compiled for; lengths in tokens."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int = 1


def weight_bytes(shape: ModelShape, precision: Precision) -> int:
    if precision.gguf_type is not None:
        return precision.gguf_bytes
    plain = shape.other_parameters + shape.embedding_parameters + shape.head_parameters
    linear = precision.linear_bytes(shape.linear_parameters)
    return int(precision.scale * (linear + plain * precision.dtype_bytes))


def rank_weight_bytes(shape: ModelShape, precision: Precision, split: Parallelism) -> int:
    """Return the weights of the largest rank. A tied output layer counts, as an engine may store it."""
    layers = math.ceil(shape.num_layers / split.pp_size) / shape.num_layers
    linear = precision.linear_bytes(math.ceil(shape.linear_parameters * layers / split.tp_size))
    other = math.ceil(shape.other_parameters * layers)
    first = shape.embedding_parameters
    last = math.ceil(shape.embedding_parameters / split.tp_size)
    ends = first + last if split.pp_size == 1 else max(first, last)
    return int(precision.scale * (linear + (other + ends) * precision.dtype_bytes))


def kv_bytes_per_token(shape: ModelShape, precision: Precision, split: Parallelism = Parallelism()) -> int:
    """Return the size of one rank's KV cache for one token."""
    layers = math.ceil(shape.num_layers / split.pp_size)
    if shape.latent_size is not None:
        return math.ceil(layers * shape.latent_size * precision.kv_bytes)
    heads = math.ceil(shape.num_kv_heads / split.tp_size)
    return math.ceil(2 * layers * heads * shape.head_size * precision.kv_bytes)


def kv_bytes_per_sequence(kv_bytes_of_token: int, length_tokens: int) -> int:
    """Return the size for a sequence of ``length_tokens``, in whole blocks."""
    return kv_bytes_of_token * math.ceil(length_tokens / BLOCK_TOKENS) * BLOCK_TOKENS


def activation_bytes(shape: ModelShape, precision: Precision, split: Parallelism, limits: Limits) -> int:
    """Estimate the activations of one rank while it computes its largest batch."""
    heads = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size / split.tp_size
    mlp = _MLP_MATRICES_HELD * shape.intermediate_size / split.tp_size
    of_tokens = limits.max_num_tokens * (3 * shape.hidden_size + heads + mlp) * precision.dtype_bytes
    logits = 2 * 4 * limits.max_batch_size * limits.max_beam_width * shape.vocab_size
    return math.ceil(of_tokens + logits)


def adapter_bytes(shape: ModelShape, precision: Precision, ranks: int) -> int:
    """Estimate a GPU's room for LoRA adapters whose ranks have the sum ``ranks``; experts have none."""
    heads = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    of_attention = 4 * shape.hidden_size + heads
    of_mlp = _MLP_MATRICES_HELD * (shape.hidden_size + shape.intermediate_size)
    return ranks * shape.num_layers * (of_attention + of_mlp) * precision.dtype_bytes


@dataclass(frozen=True)
class ServingMemory:
    """GPU memory of one rank of an engine."""

    weight_bytes: int
    activation_bytes: int
    kv_token_bytes: int
    kv_sequence_bytes: int
    """KV cache of a sequence of the maximum length."""

    def is_possible_on(self, gpu: GpuModel) -> bool:
        """Return True if the weights alone fit."""
        return self.weight_bytes < gpu.memory_bytes

    def kv_tokens(self, gpu: GpuModel) -> int:
        """Return the number of tokens for whose KV cache there is memory."""
        free_bytes = gpu.memory_bytes - self.weight_bytes - self.activation_bytes - CUDA_BYTES
        return max(int(free_bytes * KV_FRACTION) // self.kv_token_bytes, 0)

    @property
    def least_gpu_bytes(self) -> int:
        """Memory of a GPU that serves one sequence of the maximum length."""
        beside = self.weight_bytes + self.activation_bytes + CUDA_BYTES
        return beside + int(self.kv_sequence_bytes / KV_FRACTION)

    def sequences(self, gpu: GpuModel) -> int:
        """Return the number of concurrent sequences of the maximum length."""
        return self.kv_tokens(gpu) * self.kv_token_bytes // self.kv_sequence_bytes


def serving_memory(
    shape: ModelShape, precision: Precision, split: Parallelism, limits: Limits
) -> ServingMemory:
    """Return the memory of the largest rank."""
    of_token = kv_bytes_per_token(shape, precision, split)
    return ServingMemory(
        weight_bytes=rank_weight_bytes(shape, precision, split),
        activation_bytes=activation_bytes(shape, precision, split, limits),
        kv_token_bytes=of_token,
        kv_sequence_bytes=kv_bytes_per_sequence(of_token, limits.max_seq_len),
    )
