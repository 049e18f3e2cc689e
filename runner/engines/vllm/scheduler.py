"""vLLM's schedulers, telling now and then what they hold instead of at every step.

NOTE: vLLM's own summary is made, encoded and decoded with every step. With 256 streams it took a sixth of the
engine core's processor time, and the core's processor time is what limits a small model on a fast GPU.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats

_INTERVAL_S = 0.25


class _Telling:
    """Before a scheduler class: its ``make_stats``, which vLLM calls after each step."""

    running: Any
    waiting: Any
    skipped_waiting: Any
    kv_cache_manager: Any
    _due_s = 0.0

    def make_stats(self, *_: object, **__: object) -> SchedulerStats | None:
        """What the slot wants to know; always after the last step before a rest, so that it stays true."""
        now_s = time.monotonic()
        if self.running and now_s < self._due_s:
            return None
        self._due_s = now_s + _INTERVAL_S
        return SchedulerStats(
            num_running_reqs=len(self.running),
            num_waiting_reqs=len(self.waiting),
            num_skipped_waiting_reqs=len(self.skipped_waiting),
            kv_cache_usage=self.kv_cache_manager.usage,
        )


class TellingScheduler(_Telling, Scheduler):  # type: ignore[misc]
    pass


class TellingAsyncScheduler(_Telling, AsyncScheduler):  # type: ignore[misc]
    pass
