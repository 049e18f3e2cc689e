"""Number of processors that this process may use."""

import math
import os
from contextlib import suppress
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def usable_processors(limit: Path = _LIMIT) -> int:
    """Return the number that it may run on, or a lower one if its cgroup (v2) limits their time."""
    count = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # No such file, or "max" in place of a number.
        quota, period = limit.read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    return count
