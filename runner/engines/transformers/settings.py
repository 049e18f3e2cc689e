"""The batch and cache sizes of the ``transformers`` engine, from its options and its model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import ContinuousBatchingConfig, PretrainedConfig

from engine.machine import main_memory
from runner.engines.protocol.options import Parser, integer, one_of, parse_options

ENGINE_KIND = "transformers"
_DTYPES = {"auto": None, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DEFAULT_BATCH_SIZE = {"cpu": main_memory.BATCH_SIZE, "cuda": 256}
# The library's share of the GPU's memory. The rest is for sampling, which has tensors of the vocabulary's
# size.
_GPU_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Options:
    """Parsed options. ``dtype`` None: as the weights. ``max_tokens_in_paged_kv_cache`` None: what fits."""

    device: torch.device
    dtype: torch.dtype | None
    max_batch_size: int
    max_tokens_in_paged_kv_cache: int | None

    @property
    def is_cpu(self) -> bool:
        return bool(self.device.type == "cpu")

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """Parse options; empty ones count as absent. Raises ``InvalidSetting``."""
        parsed = parse_options(options, _PARSERS)
        device = parsed.get("device") or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # Half precision is slower than single on most CPUs, and its greedy output has ties.
        default = torch.float32 if device.type == "cpu" else None
        return cls(
            device=device,
            dtype=parsed.get("dtype") or default,
            max_batch_size=parsed.get("max_batch_size", _DEFAULT_BATCH_SIZE[device.type]),
            max_tokens_in_paged_kv_cache=parsed.get("max_tokens_in_paged_kv_cache"),
        )


def _device(text: str) -> torch.device | None:
    names = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    names += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if text not in ("auto", *names):
        raise ValueError(f"auto or a device of this machine ({', '.join(names)})")
    return None if text == "auto" else torch.device(text)


_PARSERS: dict[str, Parser] = {
    "device": _device,
    "dtype": one_of(_DTYPES),
    "max_batch_size": integer(1),
    "max_tokens_in_paged_kv_cache": integer(1),
}


def batching_config(
    options: Options, model: PretrainedConfig, dtype: torch.dtype, weight_bytes: int
) -> ContinuousBatchingConfig:
    """Make the library's settings. ``model`` is the text model's configuration, ``dtype`` the cache's."""
    # NOTE: see ``SamplingProcessor`` for why asynchronous batching stays off.
    config = ContinuousBatchingConfig(max_requests_per_batch=options.max_batch_size, use_async_batching=False)
    if not options.is_cpu:
        config.max_memory_percent = _GPU_MEMORY_SHARE
        if options.max_tokens_in_paged_kv_cache:
            config.num_blocks = math.ceil(options.max_tokens_in_paged_kv_cache / config.page_size)
        return config
    config.use_cuda_graph = False
    # ``GrowingCache`` takes memory as it is needed: ``num_blocks`` is a bound, which must fit the machine.
    config.max_memory_percent = 1.0
    config.page_size = main_memory.PAGE_TOKENS
    config.max_batch_tokens = max(main_memory.STEP_TOKENS, options.max_batch_size)
    # The block table is for flash attention's kernels.
    config.max_blocks_per_request = 0
    cache_tokens = options.max_tokens_in_paged_kv_cache
    if not cache_tokens:
        cache_tokens = main_memory.cpu_cache(
            present_bytes=main_memory.ram_here_bytes(),
            weight_bytes=weight_bytes,
            token_bytes=_bytes_per_token(model, dtype),
            max_tokens=model.max_position_embeddings,
            batch_size=options.max_batch_size,
        ).num_tokens
    config.num_blocks = math.ceil(cache_tokens / main_memory.PAGE_TOKENS)
    return config


def _bytes_per_token(model: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    head_size = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    num_heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    return int(dtype.itemsize * 2 * model.num_hidden_layers * num_heads * head_size)
