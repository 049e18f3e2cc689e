"""What the adapter reads and sets of vLLM's configuration."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class ModelConfig:
    vocab_size: int
    max_model_len: int

    def get_vocab_size(self) -> int:
        return self.vocab_size


@dataclasses.dataclass
class SchedulerConfig:
    max_num_seqs: int
    policy: str = "fcfs"
    async_scheduling: bool = True
    scheduler_cls: Any = None


@dataclasses.dataclass
class VllmConfig:
    model_config: ModelConfig
    scheduler_config: SchedulerConfig
