"""Whether an engine fits a GPU, and how many sequences it then serves at once."""

from __future__ import annotations

from dataclasses import dataclass

from builder.sizes.gpus import GpuModel
from builder.sizes.memory import (
    CUDA_BYTES,
    KV_FRACTION,
    Limits,
    Parallelism,
    Precision,
    activation_bytes,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    rank_weight_bytes,
)
from builder.sizes.model_shape import ModelShape


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
