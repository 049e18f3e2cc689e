"""``SyncMPClient`` over a thread that makes tokens at a fixed pace."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from concurrent.futures import Future
from logging.config import dictConfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from vllm.lora.request import LoRARequest
from vllm.outputs import RequestError
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.metrics.stats import PrefillStats, RequestSpecDecodeMetrics, SchedulerStats

COMES_TOO_LATE = 665
"""A prompt that ends with it ends as one that comes while vLLM falls asleep."""
BREAKS_THE_ENGINE = 666
"""A prompt that ends with it ends the engine core."""
FAILS_ALONE = 667
"""A prompt that ends with it ends with vLLM's ``error``; a generation's has a message."""
KILLS_THE_CORE = 668
"""A prompt that ends with it ends the engine core without an error, as SIGKILL does."""
SHIFT = "standin_shift"
"""Key of an adapter's configuration: by how much the next token is higher. An adapter with 0 can't be loaded;
loading one with -1 kills the core."""
NEVER_EMBEDDED = 669
"""An input that ends with it runs until it is aborted."""
DOES_NOT_START = 999
"""A vocabulary of this size does not fit into memory."""

_STEP_S = 0.001
_BLOCK_TOKENS = 16
"""Size of a block of the KV cache, whose blocks are kept for later requests."""

log = logging.getLogger("vllm.v1.engine.core")


class SyncMPClient:
    def __init__(self, vllm_config: Any, executor_class: Any, log_stats: bool, renderer: Any = None) -> None:
        model = vllm_config.model_config
        self._vocab_size = model.get_vocab_size()
        assert (model.runner == "pooling") == (model.pooler_config is not None)
        if self._vocab_size == DOES_NOT_START:
            # As vLLM's processes do when they start.
            dictConfig(
                {"version": 1, "disable_existing_loggers": False, "loggers": {"vllm": {"propagate": False}}}
            )
            try:
                raise MemoryError("No available memory for the cache blocks")
            except MemoryError:
                log.exception("EngineCore failed to start.")
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        self._slots = vllm_config.scheduler_config.max_num_seqs
        self.outputs_queue: queue.Queue[EngineCoreOutputs | Exception] = queue.Queue()
        self._lock = threading.Lock()
        self._requests: dict[str, tuple[EngineCoreRequest, list[int]]] = {}
        self._kept: set[tuple[object, ...]] = set()
        self._shifts: dict[int, int] = {}
        """Shifts of adapters in memory, by number."""
        self._drafts = vllm_config.speculative_config is not None
        self._asleep: set[str] = set()
        self._has_weights = True
        self._has_priorities = vllm_config.scheduler_config.policy == "priority"
        self._is_closed = False
        threading.Thread(target=self._run, daemon=True).start()

    def get_output(self) -> EngineCoreOutputs:
        output = self.outputs_queue.get()
        if isinstance(output, Exception):
            raise output
        return output

    def add_request(self, request: EngineCoreRequest) -> None:
        self._send_input("ADD", request)

    def abort_requests(self, request_ids: list[str]) -> None:
        self._send_input("ABORT", request_ids)

    def call_utility(self, method: str, *args: Any) -> Any:
        self._send_input("UTILITY", method)

    def is_sleeping(self) -> bool:
        self.call_utility("is_sleeping")
        return False

    def add_lora(self, lora_request: LoRARequest) -> bool:
        self.call_utility("add_lora")
        with self._lock:
            shift = self._shift_of(lora_request)
        if shift < 0:
            self.shutdown()
            Future().result()  # As vLLM waits for the result of a core that is gone.
        return shift > 0

    def remove_lora(self, lora_id: int) -> bool:
        self.call_utility("remove_lora")
        with self._lock:
            return self._shifts.pop(lora_id, None) is not None

    def _shift_of(self, lora: LoRARequest) -> int:
        """Return the adapter's shift. It is read if it is not in memory."""
        if lora.lora_int_id not in self._shifts:
            path = Path(lora.lora_path) / "adapter_config.json"
            shift = json.loads(path.read_text()).get(SHIFT, 1) if path.exists() else 1
            if not shift:
                raise RuntimeError("Call to add_lora method failed: shapes do not match")
            self._shifts[lora.lora_int_id] = shift
        return self._shifts[lora.lora_int_id]

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.call_utility("sleep")
        while mode == "wait" and self._requests:
            time.sleep(_STEP_S)
        with self._lock:
            aborted = [EngineCoreOutput(key, [], finish_reason=FinishReason.ABORT) for key in self._requests]
            self._requests.clear()
            self._kept.clear()
            self._asleep, self._has_weights = {"weights", "kv_cache"}, level < 2
            if level == 2:
                self._shifts.clear()
            self.outputs_queue.put(EngineCoreOutputs(aborted))

    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.call_utility("wake_up")
        self._asleep -= set(tags or self._asleep)
        return not self._asleep

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        assert method == "reload_weights"
        assert "weights" not in self._asleep
        self._has_weights = True
        return [None]

    def shutdown(self, timeout: float | None = None) -> None:
        self._is_closed = True

    def _send_input(self, request_type: Any, request: Any) -> None:
        with self._lock:
            if request_type == "ADD":
                self._requests[request.request_id] = (request, [])
                if request.prompt_token_ids[-1] == KILLS_THE_CORE:
                    self.shutdown()  # All that vLLM does then: get_output goes on waiting.
            if request_type == "ABORT":
                for key in request:
                    self._requests.pop(key, None)

    def _run(self) -> None:
        told = None
        while not self._is_closed:
            time.sleep(_STEP_S)
            with self._lock:
                if self._asleep:
                    continue
                outputs = [self._step(*each) for each in self._scheduled()]
                for output in outputs:
                    if output is not None and output.finish_reason is not None:
                        del self._requests[output.request_id]
                held = len(self._requests)
            if None in outputs:
                try:
                    raise MemoryError("CUDA out of memory")
                except MemoryError:
                    log.exception("EngineCore encountered a fatal error.")
                self.outputs_queue.put(RuntimeError("EngineCore encountered an issue."))
                return
            running = min(held, self._slots)
            stats = SchedulerStats(running, held - running, min(1.0, held / 100))
            if outputs or stats != told:
                self.outputs_queue.put(EngineCoreOutputs([each for each in outputs if each], stats))
                told = stats

    def _scheduled(self) -> list[tuple[EngineCoreRequest, list[int]]]:
        """Schedule as many as fit: running ones, then by priority if that is the policy, then by arrival."""
        requests = list(self._requests.values())
        if self._has_priorities:
            requests.sort(key=lambda each: (not each[1], each[0].priority))
        return requests[: self._slots]

    def _prefill(self, request: EngineCoreRequest) -> PrefillStats:
        """Return the blocks at the beginning that an earlier request had. The last token is computed."""
        lora = request.lora_request and request.lora_request.lora_name
        ids, key = request.prompt_token_ids or [], (request.cache_salt, lora)
        prefixes = {(*key, *ids[:end]) for end in range(_BLOCK_TOKENS, len(ids), _BLOCK_TOKENS)}
        cached = len(prefixes & self._kept) * _BLOCK_TOKENS
        self._kept |= prefixes
        return PrefillStats(len(ids), cached)

    def _step(self, request: EngineCoreRequest, made: list[int]) -> EngineCoreOutput | None:
        if request.pooling_params is not None:
            return self._pool(request)
        prompt, parameters = request.prompt_token_ids or [], request.sampling_params
        assert parameters is not None
        if prompt[-1] == BREAKS_THE_ENGINE:
            return None
        errors = {
            FAILS_ALONE: RequestError("validation_error", "Invalid structured outputs"),
            COMES_TOO_LATE: RequestError("engine_paused", "Generation is paused.", retryable=True),
        }
        if (error := errors.get(prompt[-1])) is not None:
            return EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR, error=error)
        prefill_stats = None if made else self._prefill(request)
        shift = self._shift_of(request.lora_request) if request.lora_request else 1
        if not self._has_weights:
            shift = 0
        made.append(self._next([*prompt, *made], parameters, shift))
        output = EngineCoreOutput(request.request_id, made[-1:], prefill_stats=prefill_stats)
        if self._drafts and len(made) < (parameters.max_tokens or 0):
            made.append(self._next([*prompt, *made], parameters, shift))
            output.new_token_ids = made[-2:]
        if parameters.logprobs is not None:
            # Rows are as long as the request of the batch that asks for the most needs: for 3 tokens.
            ids = [made[-1], made[-1], 1, 2]
            values = [-each / 1000 for each in ids]
            output.new_logprobs = SimpleNamespace(
                logprob_token_ids=np.array([ids]), logprobs=np.array([values])
            )
        if len(made) < parameters.min_tokens:
            return output
        if made[-1] in (parameters.stop_token_ids or []):
            output.finish_reason, output.stop_reason = FinishReason.STOP, made[-1]
        elif len(made) >= (parameters.max_tokens or 0):
            output.finish_reason = FinishReason.LENGTH
        if self._drafts and output.finish_reason is not None:
            steps = len(made) // 2
            output.spec_decode_metrics = RequestSpecDecodeMetrics(2, [0, steps, 0], 2 * steps)
        return output

    def _pool(self, request: EngineCoreRequest) -> EngineCoreOutput:
        """Return the first and the last token, the mean, or their vector of length 1."""
        prompt, parameters = request.prompt_token_ids or [], request.pooling_params
        assert parameters is not None
        assert parameters.task == "embed"
        if prompt[-1] == FAILS_ALONE:
            return EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
        if prompt[-1] == NEVER_EMBEDDED:
            return EngineCoreOutput(request.request_id, [])
        vector = np.array([prompt[0], prompt[-1], np.mean(prompt)], np.float32)
        if parameters.use_activation:
            vector /= np.linalg.norm(vector)
        output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.STOP)
        output.pooling_output = SimpleNamespace(float=lambda: vector)
        return output

    def _next(self, tokens: list[int], parameters: Any, shift: int = 1) -> int:
        """Return the token after the last one that does not end a bad word."""
        bad = {word[-1] for word in parameters._bad_words_token_ids or [] if len(word) == 1}
        token = (tokens[-1] + shift) % self._vocab_size
        while token in bad:
            token = (token + 1) % self._vocab_size
        return token
