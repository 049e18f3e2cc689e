"""What a failure leads to: it is recorded, and after too many of them the runner gives up."""

from __future__ import annotations

import asyncio

from runner.supervision.child import Log
from runner.supervision.failures import Failure, FailureLimit
from runner.supervision.flight_recorder import FlightRecorder


class FailureLog:
    """``hopeless`` is set when failures were too many."""

    def __init__(
        self, recorder: FlightRecorder, limit: FailureLimit, log: Log, hopeless: asyncio.Event
    ) -> None:
        self._recorder = recorder
        self._limit = limit
        self._log = log
        self._hopeless = hopeless

    def add(self, failure: Failure) -> bool:
        """Record a failure; False once there were too many."""
        try:
            self._log(f"flight recorder: {self._recorder.record(failure)}")
        except OSError as exc:
            self._log(f"warning: the flight recorder could not write: {exc}")
        if self._limit.is_reached():
            limit = f"{self._limit.count} failures within {self._limit.window_s:g} s"
            self._log(f"{limit} (FAILURE_LIMIT, FAILURE_WINDOW): giving up")
            self._hopeless.set()
        return not self._hopeless.is_set()
