"""Stands in for a GPU under the real vLLM: an executor that knows the next token without a model.

The next token is always ``(token + 1) % vocabulary``. Everything else is vLLM's own: engine core process,
sockets, scheduler, KV cache blocks, stop conditions. ``distributed_executor_backend`` names it.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.executor import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

STEP_S_VARIABLE = "STANDIN_STEP_S"
STEP_FILE_VARIABLE = "STANDIN_STEP_FILE"
"""A file with the seconds of a step, read before each one, so that they can be changed."""
BROKEN_TOKEN_VARIABLE = "STANDIN_BROKEN_TOKEN"
"""A prompt that ends with this token ends the engine core."""

_KV_CACHE_BYTES = 64 << 20
_STEP_BYTES = 16


class StandInExecutor(Executor):  # type: ignore[misc]
    supports_pp = False

    def _init_executor(self) -> None:
        self._last: dict[str, int] = {}
        self._prompts: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        """Differences of tokens to the one before, of requests with a LoRA adapter."""
        self._adapters: dict[int, int] = {}
        """The same of adapters, by number."""
        self._has_weights = True
        self._vocab_size = self.model_config.get_vocab_size()
        self._step_s = float(os.environ.get(STEP_S_VARIABLE, "0"))
        step_file = os.environ.get(STEP_FILE_VARIABLE)
        self._step_file = os.open(step_file, os.O_RDONLY) if step_file else None
        self._broken = int(os.environ.get(BROKEN_TOKEN_VARIABLE, "-1"))

    def check_health(self) -> None:
        pass

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False
    ) -> Any:
        result = [getattr(self, f"_{method}", lambda *_, **__: None)(*args, **(kwargs or {}))]
        if not non_block:
            return result
        future: Future[Any] = Future()
        future.set_result(result)
        return future

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        output = self._step(scheduler_output)
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def _get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def _add_lora(self, request: Any) -> bool:
        if request.lora_int_id not in self._adapters:
            config = json.loads((Path(request.lora_path) / "adapter_config.json").read_text())
            if not config["standin_shift"]:
                raise ValueError("shapes do not match")
            self._adapters[request.lora_int_id] = config["standin_shift"]
        return True

    def _remove_lora(self, number: int) -> bool:
        return self._adapters.pop(number, None) is not None

    def _sleep(self, level: int) -> None:
        self._has_weights = self._has_weights and level < 2

    def _reload_weights(self) -> None:
        self._has_weights = True
        self._adapters.clear()

    def _take_draft_token_ids(self) -> DraftTokenIds | None:
        """Draft two tokens for each request, of which the first is right."""
        if self.vllm_config.speculative_config is None:
            return None
        drafts = [[(last + 1) % self._vocab_size, last] for last in self._last.values()]
        return DraftTokenIds(list(self._last), drafts)

    def _compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def _get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBNHC"]

    def _determine_available_memory(self) -> int:
        return _KV_CACHE_BYTES

    def _get_kv_cache_spec(self) -> dict[str, Any]:
        spec = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
        return {"layer.0": spec}

    def _step(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        if self._step_file is not None:
            self._step_s = float(os.pread(self._step_file, _STEP_BYTES, 0))
        time.sleep(self._step_s)
        for request_id in scheduled.finished_req_ids:
            for table in (self._last, self._prompts, self._computed, self._steps):
                table.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            if new.prompt_token_ids[-1] == self._broken:
                raise RuntimeError("the stand-in was told to break")
            self._prompts[new.req_id] = new.prompt_token_ids
            self._computed[new.req_id] = new.num_computed_tokens
            if new.lora_request is not None:
                self._add_lora(new.lora_request)
                self._steps[new.req_id] = self._adapters[new.lora_request.lora_int_id]
        sampled = []
        for request_id, count in scheduled.num_scheduled_tokens.items():
            self._computed[request_id] += count
            if self._computed[request_id] < len(self._prompts[request_id]):
                sampled.append([])
                continue
            last = self._last.get(request_id, self._prompts[request_id][-1])
            step = self._steps.get(request_id, 1) if self._has_weights else 0
            tokens: list[int] = []
            # After each draft token that is right, one more token is known.
            for draft in [*scheduled.scheduled_spec_decode_tokens.get(request_id, []), None]:
                last = (last + step) % self._vocab_size
                tokens.append(last)
                if draft != last:
                    break
            self._last[request_id] = last
            sampled.append(tokens)
        ids = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={key: index for index, key in enumerate(ids)},
            sampled_token_ids=sampled,
        )
