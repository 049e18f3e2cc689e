"""Responses, results and statistics, with published attributes: those that are used, and no others."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from ._pybind import u64


class FinishReason(Enum):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3


class _Unnamed:
    """What C++ has a value for and Python no name: the finish reason of a cancelled request."""


CANCELLED: Any = _Unnamed()


class _Record:
    """A C++ struct: attributes that are 0 at first, and no others."""

    NAMES: ClassVar[str] = ""

    def __init__(self) -> None:
        self.__dict__.update(dict.fromkeys(self.NAMES.split(), 0))


class KvCacheMetrics(_Record):
    NAMES = "num_reused_blocks"


class RequestPerfMetrics(_Record):
    NAMES = "kv_cache_metrics"

    def __init__(self) -> None:
        super().__init__()
        self.kv_cache_metrics = KvCacheMetrics()


class Result(_Record):
    NAMES = "is_final output_token_ids log_probs finish_reasons request_perf_metrics"

    def __init__(self) -> None:
        super().__init__()
        self.log_probs = self.request_perf_metrics = None


class Response:
    """``Response(request_id, error_msg)`` or ``Response(request_id, result)``; the other one throws."""

    def __init__(self, request_id: int, content: str | Result) -> None:
        self.request_id = u64(request_id)
        self._content = content

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


class KvCacheStats(_Record):
    NAMES = "max_num_blocks free_num_blocks used_num_blocks tokens_per_block reused_blocks"


class InflightBatchingStats(_Record):
    NAMES = (
        "num_scheduled_requests num_context_requests num_gen_requests num_paused_requests "
        "num_ctx_tokens micro_batch_id"
    )


class IterationStats(_Record):
    NAMES = (
        "iter num_active_requests num_queued_requests max_num_active_requests gpu_mem_usage cpu_mem_usage "
        "pinned_mem_usage kv_cache_stats static_batching_stats inflight_batching_stats"
    )

    def __init__(self) -> None:
        super().__init__()
        self.kv_cache_stats = KvCacheStats()
        self.static_batching_stats = None
        self.inflight_batching_stats = InflightBatchingStats()
