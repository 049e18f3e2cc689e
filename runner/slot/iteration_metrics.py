"""The figures of TensorRT-LLM's iterations on Triton's metrics port, by the names of NVIDIA's backend.

Dashboards made for that backend read these as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAMILIES = {
    "nv_trt_llm_request_metrics": "TRT LLM request metrics",
    "nv_trt_llm_runtime_memory_metrics": "TRT LLM runtime memory metrics",
    "nv_trt_llm_kv_cache_block_metrics": "TRT LLM KV cache block metrics",
    "nv_trt_llm_inflight_batcher_metrics": "TRT LLM inflight_batcher-specific metrics",
    "nv_trt_llm_general_metrics": "General TRT LLM metrics",
}
GAUGES = {
    "num_active_requests": ("nv_trt_llm_request_metrics", "request_type", "active"),
    "max_num_active_requests": ("nv_trt_llm_request_metrics", "request_type", "max"),
    "num_scheduled_requests": ("nv_trt_llm_request_metrics", "request_type", "scheduled"),
    "num_context_requests": ("nv_trt_llm_request_metrics", "request_type", "context"),
    # NVIDIA's backend 0.16 has no figure of these; its later versions call it "waiting".
    "num_queued_requests": ("nv_trt_llm_request_metrics", "request_type", "waiting"),
    "cpu_mem_usage": ("nv_trt_llm_runtime_memory_metrics", "memory_type", "cpu"),
    "gpu_mem_usage": ("nv_trt_llm_runtime_memory_metrics", "memory_type", "gpu"),
    "pinned_mem_usage": ("nv_trt_llm_runtime_memory_metrics", "memory_type", "pinned"),
    "max_num_blocks": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),
    "free_num_blocks": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "free"),
    "used_num_blocks": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "used"),
    "tokens_per_block": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),
    "num_ctx_tokens": (
        *("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"),
        "total_context_tokens",
    ),
    "num_gen_requests": (
        *("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"),
        "generation_requests",
    ),
    "micro_batch_id": (
        *("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"),
        "micro_batch_id",
    ),
    "num_paused_requests": (
        *("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"),
        "paused_requests",
    ),
    "iter": ("nv_trt_llm_general_metrics", "general_type", "iteration_counter"),
}
"""By TensorRT-LLM's name of a figure: metric, label and the label's value."""


class IterationMetrics:
    """One gauge for each known figure; ``model`` are the labels that all have."""

    def __init__(self, pb_utils: Any, model: Mapping[str, str]) -> None:
        kinds = pb_utils.MetricFamily
        self._families = {
            name: kinds(name=name, description=text, kind=kinds.GAUGE) for name, text in FAMILIES.items()
        }
        self._metrics = {
            key: self._families[family].Metric(labels={label: value, **model})
            for key, (family, label, value) in GAUGES.items()
        }
        self._published: dict[str, float] = {}

    def publish(self, gauges: Mapping[str, float]) -> None:
        for key, value in gauges.items():
            if key in self._metrics and value != self._published.get(key):
                self._metrics[key].set(value)
                self._published[key] = value
