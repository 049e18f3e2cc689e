"""The engine core's messages."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from vllm.lora.request import LoRARequest
from vllm.outputs import RequestError
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.metrics.stats import PrefillStats, RequestSpecDecodeMetrics, SchedulerStats


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return ("stop", "length", "abort", "error", "repetition")[self.value]


class EngineCoreRequestType(enum.Enum):
    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: None
    sampling_params: SamplingParams | None
    pooling_params: PoolingParams | None
    arrival_time: float
    lora_request: LoRARequest | None
    cache_salt: str | None
    data_parallel_rank: int | None
    priority: int = 0


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    """``LogprobsLists``: its ``logprobs`` [tokens, 1] are the chosen tokens'."""
    pooling_output: Any = None
    """A tensor."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prefill_stats: PrefillStats | None = None
    spec_decode_metrics: RequestSpecDecodeMetrics | None = None
    error: RequestError | None = None
    """With the finish reason ``ERROR``, if vLLM knows more."""


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    finished_requests: set[str] | None = None
    engine_index: int = 0
