"""Detects that an engine worker hangs, and why.

A stopped process (SIGSTOP) is detected at once. An engine without output may be busy with a long prompt, so
it is treated as hanging only after ``timeout_s`` in which requests waited and none got a token.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from engine.machine.processes import StoppedWatch, descendants

_DESCENDANTS_POLL_S = 5.0


class HangDetector:
    """For one worker at a time. Any thread may call ``progress`` and ``reset``, one thread ``check``."""

    def __init__(self, timeout_s: float) -> None:
        """``timeout_s`` of 0: only a stopped process hangs."""
        self._timeout_s = timeout_s
        self._stopped = StoppedWatch()
        self._pids: list[int] = []
        self._listed_s = 0.0
        self._progress_s = 0.0

    def progress(self) -> None:
        """A request got a message, or no request waits."""
        self._progress_s = time.monotonic()

    def reset(self) -> None:
        """The worker ended or was replaced: list its processes again."""
        self._listed_s = 0.0

    def check(self, pid: int) -> str | None:
        """Why the worker with this process id hangs; None if it does not."""
        now_s = time.monotonic()
        if now_s - self._listed_s > _DESCENDANTS_POLL_S or pid not in self._pids:
            self._pids, self._listed_s = [pid, *descendants(pid)], now_s
        if (stopped := self._stopped.find(self._pids)) is not None:
            subject = "it" if stopped == pid else f"its process {stopped}"
            return f"{subject} was stopped (SIGSTOP) and did not go on"
        if 0 < self._timeout_s < now_s - self._progress_s:
            return f"it hangs: requests waited and heard nothing for {self._timeout_s:g} s"
        return None

    def kill_descendants(self) -> None:
        """Kill the processes that the worker had when they were last listed."""
        for pid in self._pids[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
