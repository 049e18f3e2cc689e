"""What the adapter reads and sets of vLLM's configuration."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class PoolerConfig:
    seq_pooling_type: str | None = None
    use_activation: bool | None = None


@dataclasses.dataclass
class ModelConfig:
    hf_text_config: Any
    max_model_len: int
    runner: str = "generate"
    pooler_config: PoolerConfig | None = None
    enable_sleep_mode: bool = False
    supports_multimodal_inputs = False
    is_encoder_decoder = False

    def get_vocab_size(self) -> int:
        return int(self.hf_text_config.vocab_size)


@dataclasses.dataclass
class CacheConfig:
    block_size: int = 16
    num_gpu_blocks: int | None = 1024


@dataclasses.dataclass
class SchedulerConfig:
    max_num_seqs: int
    policy: str = "fcfs"
    async_scheduling: bool = True
    scheduler_cls: Any = None


@dataclasses.dataclass
class LoRAConfig:
    max_loras: int
    max_cpu_loras: int | None
    max_lora_rank: int


@dataclasses.dataclass
class ParallelConfig:
    data_parallel_size: int = 1
    numa_bind: bool = False


@dataclasses.dataclass
class VllmConfig:
    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    lora_config: LoRAConfig | None = None
    speculative_config: dict[str, Any] | None = None
    """Where it is given, two draft tokens are made in each step, of which the first is right."""
    cache_config: CacheConfig = dataclasses.field(default_factory=CacheConfig)
