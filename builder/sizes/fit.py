"""Machines that fit a model that is not compiled: GPUs, with their tokens of KV cache, or main memory.

Memory is estimated high, as in ``memory.py``: a model that is reported to fit does fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from builder.sizes.memory import (
    CUDA_BYTES,
    GpuModel,
    Limits,
    Parallelism,
    Precision,
    activation_bytes,
    adapter_bytes,
    kv_bytes_per_token,
    rank_weight_bytes,
    weight_bytes,
)
from builder.sizes.model_shape import ModelShape
from builder.sizes.precision import (
    WHOLE,
    cache_bits,
)
from builder.weights.checkpoint import ModelConfig
from engine.machine.main_memory import (
    BATCH_SIZE,
    PROGRAM_BYTES,
    RUNNER_BYTES,
    CpuCache,
    cpu_cache,
    fixed_cache,
    ram_here_bytes,
)
from engine.words import in_words

GPU_COUNTS = (1, 2, 4, 8)
MIN_SEQ_LEN = 2048
"""Least tokens in the KV cache of a GPU that is not too small, unless the model's limit is lower."""

GPU_SHARE = 0.9
"""Default of vLLM's gpu_memory_utilization."""
BATCH, BATCH_TOKENS = 256, 8192
"""Sequences and tokens that vLLM computes at once by default, at most."""
_ROUND_TOKENS = 256


@dataclass(frozen=True)
class MemoryArguments:
    """What an engine's arguments change about GPU memory."""

    weight_bits: int | None = None
    """Bits of weights that the engine quantizes while it loads them."""
    kv_dtype: str | None = None
    """Data type of the KV cache, by the engine's name."""
    gpu_share: float = GPU_SHARE
    """Share of a GPU's memory that the engine takes."""
    offloaded_bytes: int = 0
    """Weights of each GPU that stay in main memory."""
    kv_bytes: int | None = None
    """Bytes of the KV cache on each GPU. None if it takes the memory that the rest leaves."""
    batch: int = BATCH
    batch_tokens: int = BATCH_TOKENS
    adapter_ranks: int = 0
    """Sum of the ranks of all LoRA adapters that a GPU has room for."""

    def applied(self, precision: Precision) -> Precision:
        # Smaller files hold what the engine would make of them: quantized weights.
        by_engine = self.weight_bits if precision.scale >= WHOLE else None
        bits = precision.weight_bits or by_engine
        kv_bits = cache_bits(self.kv_dtype)
        kv_dtype = None if kv_bits is None else self.kv_dtype
        return replace(precision, weight_bits=bits, kv_dtype=kv_dtype, kv_bits=kv_bits)


@dataclass(frozen=True)
class Demand:
    """GPU memory that one model takes. ``limit``: the model's longest sequence, in tokens."""

    shape: ModelShape
    precision: Precision
    limit: int
    arguments: MemoryArguments = MemoryArguments()

    def weight_bytes(self, num_gpus: int) -> int:
        """Return the weights of each GPU."""
        held = rank_weight_bytes(self.shape, self.precision, Parallelism(tp_size=num_gpus))
        return max(held - self.arguments.offloaded_bytes, 0)

    def can_split(self, num_gpus: int) -> bool:
        """Return True if each GPU gets the same number of attention heads."""
        return self.shape.num_heads % num_gpus == 0

    def kv_tokens(self, gpu_bytes: float, num_gpus: int) -> int:
        """Return the tokens of KV cache on ``num_gpus``; 0 if the model does not fit."""
        split = Parallelism(tp_size=num_gpus)
        if not self.can_split(num_gpus):
            return 0
        given = self.arguments
        step = Limits(given.batch, MIN_SEQ_LEN, max_num_tokens=given.batch_tokens)
        beside = activation_bytes(self.shape, self.precision, split, step) + CUDA_BYTES
        beside += adapter_bytes(self.shape, self.precision, given.adapter_ranks)
        free_bytes = gpu_bytes - self.weight_bytes(num_gpus) - beside
        if given.kv_bytes is not None:
            free_bytes = given.kv_bytes if given.kv_bytes <= free_bytes else 0
        tokens = int(free_bytes) // kv_bytes_per_token(self.shape, self.precision, split)
        return tokens if tokens >= min(self.limit, MIN_SEQ_LEN) else 0

    def max_seq_len(self, kv_tokens: int) -> int | None:
        """Return the limit to write if the model's own does not fit."""
        return None if kv_tokens >= self.limit else kv_tokens // _ROUND_TOKENS * _ROUND_TOKENS


def demand(
    shape: ModelShape,
    precision: Precision,
    values: Mapping[str, Any],
    asked: int | None,
    arguments: MemoryArguments = MemoryArguments(),
) -> Demand:
    limit = asked or ModelConfig(values).max_position_embeddings or MIN_SEQ_LEN
    return Demand(shape, precision, limit, arguments)


@dataclass(frozen=True)
class GpuFit:
    """``gpus`` GPUs that a model fits on."""

    gpus: int
    kv_tokens: int
    share: float
    """Share of a GPU's memory that the engine may take."""

    @property
    def is_shared(self) -> bool:
        """True if something else uses these GPUs."""
        return self.share < GPU_SHARE


def fit_gpus(demanded: Demand, gpus: Sequence[GpuModel], free_bytes: Sequence[int | None]) -> GpuFit | None:
    """Return the fewest of ``gpus`` on which the model fits; None if it fits on none."""
    for count in (count for count in GPU_COUNTS if count <= len(gpus)):
        smallest = min(gpu.memory_bytes for gpu in gpus[:count])
        free = min(smallest, *(smallest if free is None else free for free in free_bytes[:count]))
        share = min(demanded.arguments.gpu_share, int(100 * free / smallest) / 100)
        if tokens := demanded.kv_tokens(share * smallest, count):
            return GpuFit(count, tokens, share)
    return None


@dataclass(frozen=True)
class MainMemory:
    """Main memory that a model takes where it runs without a GPU."""

    present_bytes: int
    """Memory of this machine."""
    dtype: str
    weight_bytes: int
    cache: CpuCache
    least_bytes: int
    """Memory with the KV cache, if any, of one short sequence."""
    program: str = "torch and the runner"
    program_bytes: int = PROGRAM_BYTES
    is_cache_fixed: bool = False
    """True if the cache has its size from the start."""

    @property
    def fits(self) -> bool:
        return self.least_bytes <= self.present_bytes

    def __str__(self) -> str:
        present = f"of this machine's {in_words(self.present_bytes)}"
        if not self.fits:
            return f"at least {in_words(self.least_bytes)} as {self.dtype}, {present}: does not fit here"
        weights = f"weights as {self.dtype} {in_words(self.weight_bytes)}"
        total_bytes = self.weight_bytes + self.program_bytes
        programs = f"{self.program} {in_words(self.program_bytes)}"
        cache = f"{in_words(self.cache.num_bytes)} for {self.cache.num_tokens:,} tokens of KV cache"
        if self.is_cache_fixed:
            return f"{in_words(total_bytes + self.cache.num_bytes)} {present}: {weights}, {programs}, {cache}"
        text = f"{in_words(total_bytes)} {present}: {weights}, {programs}"
        return f"{text}; as sequences grow up to {cache}" if self.cache.num_tokens else text


def main_memory(
    shape: ModelShape,
    precision: Precision,
    values: Mapping[str, Any],
    *,
    embeds: bool,
    batch_size: int | None = None,
) -> MainMemory:
    """Return what a model takes. An embedding model has no KV cache."""
    weights, of_token = weight_bytes(shape, precision), kv_bytes_per_token(shape, precision)
    length = ModelConfig(values).max_position_embeddings or MIN_SEQ_LEN
    present = ram_here_bytes()
    sizes = {
        "present_bytes": present,
        "weight_bytes": weights,
        "token_bytes": of_token,
        "max_tokens": length,
        "batch_size": batch_size or BATCH_SIZE,
    }
    short_bytes = min(length, MIN_SEQ_LEN) * of_token
    if precision.gguf_type is not None:
        least = weights + short_bytes + RUNNER_BYTES
        cache = fixed_cache(**sizes)
        return MainMemory(
            present, precision.gguf_type, weights, cache, least, "the runner", RUNNER_BYTES, True
        )
    if embeds:
        return MainMemory(present, precision.dtype, weights, CpuCache(0, 0), weights + PROGRAM_BYTES)
    # The cache takes half of what the weights leave.
    least = weights + 2 * short_bytes + PROGRAM_BYTES
    return MainMemory(present, precision.dtype, weights, cpu_cache(**sizes), least)
