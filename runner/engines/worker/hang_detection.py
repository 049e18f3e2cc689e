"""Whether an engine worker hangs, and why.

A process that was stopped is seen at once and with certainty. An engine that is silent may be busy with a
long prompt, so it counts as hanging only after ``timeout_s`` in which requests waited and none got a
token: well after clients gave up.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from runner.supervision.process_states import StoppedWatch, descendants

_DESCENDANTS_POLL_S = 5.0


class HangWatch:
    """Of one worker at a time. ``heard`` and ``forget`` may be called from any thread, ``look`` from one."""

    def __init__(self, timeout_s: float) -> None:
        """``timeout_s`` of 0: only one that was stopped hangs."""
        self._timeout_s = timeout_s
        self._stopped = StoppedWatch()
        self._pids: list[int] = []
        self._looked_s = 0.0
        self._heard_s = 0.0

    def heard(self) -> None:
        """A request just got something, or none waits."""
        self._heard_s = time.monotonic()

    def forget(self) -> None:
        """The worker is gone, or another: its processes have to be looked for."""
        self._looked_s = 0.0

    def look(self, pid: int) -> str | None:
        """Why the worker hangs whose process that is; None if it does not."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _DESCENDANTS_POLL_S or pid not in self._pids:
            self._pids, self._looked_s = [pid, *descendants(pid)], now_s
        if (stopped := self._stopped.find(self._pids)) is not None:
            who = "it" if stopped == pid else f"its process {stopped}"
            return f"{who} was stopped (SIGSTOP) and did not go on"
        if 0 < self._timeout_s < now_s - self._heard_s:
            return f"it hangs: requests waited and heard nothing for {self._timeout_s:g} s"
        return None

    def kill_descendants(self) -> None:
        """What the worker started, as last seen."""
        for pid in self._pids[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
