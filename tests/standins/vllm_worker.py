"""Stands in for a GPU under one rank of the real vLLM: ``StandInExecutor``'s tokens, after a real collective.

The ranks' processes, their message queues and their groups (Gloo) are vLLM's own, so that a rank that is gone
or stopped holds up the others as on GPUs. ``worker_cls`` names it.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.parallel_state import get_world_group
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.worker_base import WorkerBase

from tests.standins.vllm_executor import StandInExecutor


class StandInWorker(WorkerBase):  # type: ignore[misc]
    def init_device(self) -> None:
        rank = self.rank, self.distributed_init_method, self.local_rank
        init_worker_distributed_environment(self.vllm_config, *rank, "gloo")
        self.device = torch.device("cpu")
        self._steps = StandInExecutor(self.vllm_config)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        pass

    def get_supported_tasks(self) -> tuple[str, ...]:
        return self._steps._get_supported_tasks()

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return self._steps._get_kv_cache_spec()

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return self._steps._get_supported_kv_cache_layouts()

    def determine_available_memory(self) -> int:
        return self._steps._determine_available_memory()

    def initialize_from_config(self, *_: Any) -> None:
        pass

    def compile_or_warm_up_model(self) -> Any:
        return self._steps._compile_or_warm_up_model()

    def take_draft_token_ids(self) -> None:
        pass

    def execute_model(self, scheduler_output: Any) -> Any:
        ranks = torch.ones(1)
        torch.distributed.all_reduce(ranks, group=get_world_group().cpu_group)
        assert ranks.item() == self.parallel_config.world_size
        self._output = self._steps._step(scheduler_output)
        # None: vLLM asks for the tokens by ``sample_tokens``.
        return None if scheduler_output.total_num_scheduled_tokens else self._output

    def sample_tokens(self, grammar_output: Any) -> Any:
        return self._output

    def shutdown(self) -> None:
        pass
