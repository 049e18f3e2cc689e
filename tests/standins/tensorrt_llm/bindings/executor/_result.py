"""Responses, results and statistics, with the published attributes and no others."""

from __future__ import annotations

import time
from enum import Enum
from typing import Any

from ._pybind import u64


class FinishReason(Enum):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3


class _Unnamed:
    """What C++ has a value for and Python no name: the finish reason of a cancelled request."""


CANCELLED: Any = _Unnamed()


class KvCacheMetrics:
    __slots__ = (
        *("num_total_allocated_blocks", "num_new_allocated_blocks", "num_reused_blocks"),
        *("num_missed_blocks", "kv_cache_hit_rate"),
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class RequestPerfMetrics:
    __slots__ = ("first_iter", "iter", "kv_cache_metrics", "last_iter", "timing_metrics")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, None)
        self.kv_cache_metrics = KvCacheMetrics()


class Result:
    __slots__ = (
        *("is_final", "output_token_ids", "cum_log_probs", "log_probs", "context_logits"),
        *("generation_logits", "spec_dec_fast_logits_info", "encoder_output", "finish_reasons"),
        *("sequence_index", "is_sequence_final", "decoding_iter", "context_phase_params"),
        "request_perf_metrics",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, None)
        self.is_final = self.is_sequence_final = False
        self.output_token_ids: list[list[int]] = []
        self.finish_reasons: list[Any] = []
        self.sequence_index = self.decoding_iter = 0


class Response:
    """``Response(request_id, error_msg)`` or ``Response(request_id, result)``; the other one throws."""

    def __init__(self, request_id: int, content: str | Result, client_id: int | None = None) -> None:
        if not isinstance(content, (str, Result)):
            raise TypeError("Response.__init__(): incompatible constructor arguments.")
        self._request_id = u64(request_id)
        self._content = content
        self._client_id = client_id

    @property
    def request_id(self) -> int:
        return self._request_id

    @property
    def client_id(self) -> int | None:
        return self._client_id

    def has_error(self) -> bool:
        return isinstance(self._content, str)

    @property
    def error_msg(self) -> str:
        if not isinstance(self._content, str):
            raise RuntimeError("[TensorRT-LLM][ERROR] Assertion failed: Response has no error")
        return self._content

    @property
    def result(self) -> Result:
        if isinstance(self._content, str):
            raise RuntimeError(f"[TensorRT-LLM][ERROR] {self._content}")
        return self._content


class KvCacheStats:
    __slots__ = (
        *("max_num_blocks", "free_num_blocks", "used_num_blocks", "tokens_per_block"),
        *("alloc_total_blocks", "alloc_new_blocks", "reused_blocks", "missed_blocks", "cache_hit_rate"),
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class InflightBatchingStats:
    __slots__ = (
        *("num_scheduled_requests", "num_context_requests", "num_gen_requests", "num_paused_requests"),
        *("num_ctx_tokens", "micro_batch_id", "avg_num_decoded_tokens_per_iter"),
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class IterationStats:
    __slots__ = (
        *("timestamp", "iter", "iter_latency_ms", "new_active_requests_queue_latency_ms"),
        *("num_new_active_requests", "num_active_requests", "num_queued_requests"),
        *("num_completed_requests", "max_num_active_requests", "gpu_mem_usage", "cpu_mem_usage"),
        *("pinned_mem_usage", "kv_cache_stats", "cross_kv_cache_stats", "static_batching_stats"),
        "inflight_batching_stats",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)
        self.timestamp = time.strftime("%m-%d-%Y %H:%M:%S.000000")
        self.kv_cache_stats = KvCacheStats()
        self.cross_kv_cache_stats = None
        self.static_batching_stats = None
        self.inflight_batching_stats = InflightBatchingStats()
