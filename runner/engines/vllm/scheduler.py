"""vLLM's schedulers, with statistics at intervals instead of at each step.

NOTE: vLLM computes, encodes and decodes its statistics at each step. With 256 streams this took a sixth of
the engine core's processor time, which is the bottleneck of a small model on a fast GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.engines.vllm.interface import AsyncScheduler, Scheduler, SchedulerStats
from runner.engines.vllm.rank_threads import keep_threads
from runner.engines.vllm.root_cause import write_root_cause

_INTERVAL_S = 0.25

# A spawned engine core imports this module before anything can fail. The client imports it before it sets
# the variables: nothing happens there.
write_root_cause()
keep_threads()


class _Reporting:
    """A mixin that overrides ``make_stats``, which vLLM calls after each step."""

    get_request_counts: Callable[[], tuple[int, int]]
    get_kv_cache_usage: Callable[[], float]
    _due_s = 0.0

    def make_stats(self, *_: object, **__: object) -> SchedulerStats | None:
        """Return figures for metrics at intervals, and always after the last step before an idle phase."""
        now_s = time.monotonic()
        running, waiting = self.get_request_counts()
        if running and now_s < self._due_s:
            return None
        self._due_s = now_s + _INTERVAL_S
        return SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=self.get_kv_cache_usage(),
        )


class ReportingScheduler(_Reporting, Scheduler):  # type: ignore[misc]
    pass


class ReportingAsyncScheduler(_Reporting, AsyncScheduler):  # type: ignore[misc]
    pass
