"""How Linux shares processors among Cog's worker: hundreds of threads of which one at a time has the GIL.

Under ``SCHED_BATCH`` a thread that wakes does not push aside the one that runs. By default it does, runs
until it finds the GIL taken, and sleeps again: the bench's peak was a tenth lower for it.
"""

from __future__ import annotations

import os
from contextlib import suppress


def share_patiently() -> None:
    """For the threads of this process, and those that they will start.

    Not for Triton and what else begins with ``exec_with_parent``, which takes it back.
    """
    for thread_id in os.listdir("/proc/self/task"):  # noqa: PTH208 - numbers, not paths
        with suppress(OSError):  # It has ended, or a sandbox forbids it.
            os.sched_setscheduler(int(thread_id), os.SCHED_BATCH, os.sched_param(0))
