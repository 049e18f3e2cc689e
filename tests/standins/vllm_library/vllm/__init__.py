"""Stands in for vLLM 0.33.0 where it can't be installed: the names that the adapter uses, its signatures.

An engine that knows the next token without a model (``(token + 1) % vocabulary``), in a thread, no process.
``tests/runner/engines/vllm/test_interface.py`` holds it against the real one where that is installed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.config import LoRAConfig, ModelConfig, PoolerConfig, SchedulerConfig, VllmConfig


@dataclasses.dataclass
class AsyncEngineArgs:
    """Arguments that the tests give; the real one takes 259."""

    model: str = ""
    skip_tokenizer_init: bool = False
    generation_config: str = "auto"
    disable_log_stats: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.92
    tensor_parallel_size: int = 1
    enable_lora: bool = False
    max_loras: int = 1
    max_cpu_loras: int | None = None
    max_lora_rank: int = 16
    enable_sleep_mode: bool = False
    speculative_config: dict[str, Any] | None = None
    kv_events_config: dict[str, Any] | None = None
    per_request_spec_decode_metrics: str = "none"
    sleep_preserve_parameter_names: list[str] = dataclasses.field(default_factory=list)
    scheduling_policy: str = "fcfs"
    mm_processor_cache_gb: float = 4
    runner: str = "auto"
    pooler_config: PoolerConfig | None = None
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    distributed_executor_backend: str | None = None

    def create_engine_config(self, usage_context: Any = None, headless: bool = False) -> VllmConfig:
        config = json.loads((Path(self.model) / "config.json").read_text())
        limit = config["max_position_embeddings"]
        if self.max_model_len is not None and self.max_model_len > limit:
            raise ValueError(f"max_model_len ({self.max_model_len}) is greater than {limit}")
        os.environ["STANDIN_TENSOR_PARALLEL_SIZE"] = str(self.tensor_parallel_size)
        return VllmConfig(
            model_config=ModelConfig(
                SimpleNamespace(vocab_size=config["vocab_size"]),
                self.max_model_len or limit,
                self.runner,
                self.pooler_config,
                self.enable_sleep_mode,
            ),
            scheduler_config=SchedulerConfig(self.max_num_seqs or 256, self.scheduling_policy),
            speculative_config=self.speculative_config
            if self.per_request_spec_decode_metrics == "summary"
            and self.sleep_preserve_parameter_names == ["draft.*"]
            else None,
            lora_config=LoRAConfig(self.max_loras, self.max_cpu_loras, self.max_lora_rank)
            if self.enable_lora
            else None,
        )
