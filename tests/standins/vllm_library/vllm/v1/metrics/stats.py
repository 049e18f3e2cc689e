from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class PrefillStats:
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


@dataclasses.dataclass
class RequestSpecDecodeMetrics:
    num_spec_tokens: int
    histogram: list[int]
    """Steps by the number of accepted draft tokens."""
    num_draft_tokens: int = 0


@dataclasses.dataclass
class SchedulerStats:
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
