"""Metrics from the executor's ``IterationStats``, by its own names."""

from typing import Any

_ITERATION = (
    *("iter", "num_active_requests", "num_queued_requests", "max_num_active_requests"),
    *("gpu_mem_usage", "cpu_mem_usage", "pinned_mem_usage"),
)
_KV_CACHE = ("max_num_blocks", "free_num_blocks", "used_num_blocks", "tokens_per_block", "reused_blocks")
_INFLIGHT = (
    *("num_scheduled_requests", "num_context_requests", "num_gen_requests", "num_paused_requests"),
    *("num_ctx_tokens", "micro_batch_id"),
)
_STATIC = (
    *("num_scheduled_requests", "num_context_requests", "num_ctx_tokens", "num_gen_tokens"),
    "empty_gen_slots",
)

IDLE = (
    *("num_active_requests", "num_queued_requests", "used_num_blocks"),
    *_INFLIGHT,
    *_STATIC,
)
"""The metrics that are 0 without requests."""


def gauges(stats: Any) -> dict[str, float]:
    """Return metrics of an ``IterationStats``; its parts that are None are left out."""
    parts = (
        (stats, _ITERATION),
        (stats.kv_cache_stats, _KV_CACHE),
        (stats.inflight_batching_stats, _INFLIGHT),
        (stats.static_batching_stats, _STATIC),
    )
    return {name: float(getattr(part, name)) for part, names in parts if part is not None for name in names}
