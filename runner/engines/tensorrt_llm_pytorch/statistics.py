"""Metrics from the LLM API's iteration statistics, by the names that the compiled engines have for them."""

import re
from collections.abc import Mapping
from typing import Any

from runner.engines.protocol.messages import Statistics

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_PARTS = ("kvCacheStats", "inflightBatchingStats")


def read_statistics(stats: Mapping[str, Any]) -> Statistics:
    """Convert the statistics of one iteration. Parts that are missing are left out."""
    parts = [stats, *(part for name in _PARTS if isinstance(part := stats.get(name), dict))]
    gauges = {
        _CAPITAL.sub("_", name).lower(): float(value)
        for part in parts
        for name, value in part.items()
        if isinstance(value, (int, float))
    }
    blocks = gauges.get("max_num_blocks")
    return Statistics(
        active=int(gauges.get("num_active_requests", 0)),
        queued=int(gauges.get("num_queued_requests", 0)),
        cache_used=gauges.get("used_num_blocks", 0.0) / blocks if blocks else None,
        gauges=gauges,
    )


def when_idle(last: Statistics) -> Statistics:
    """Return the statistics without requests, in which there are no iterations."""
    busy = ("num_", "used_num_blocks")
    zero = {name: 0.0 for name in last.gauges if name.startswith(busy)}
    free = {"free_num_blocks": last.gauges["max_num_blocks"]} if "max_num_blocks" in last.gauges else {}
    cache_used = None if last.cache_used is None else 0.0
    return Statistics(active=0, queued=0, cache_used=cache_used, gauges={**last.gauges, **zero, **free})
