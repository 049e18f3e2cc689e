"""Calls that the front of Triton has stopped, because their clients have disconnected.

Triton tells a Python model of a disconnect only when asked, for each request anew. It never tells the models
of an ensemble.
"""

from collections.abc import Mapping
from typing import Any

from runner.engines.protocol.triton_front import ONLY_FRONT, STOPPED_CALL

_MAX_REMEMBERED = 4096
"""Number of stopped calls that are kept: their requests may come later, out of Triton's queues."""


class Stops:
    def __init__(self) -> None:
        self._calls: dict[str, None] = {}
        self._only_front = ""

    def add(self, parameters: Mapping[str, Any]) -> bool:
        """Remember the calls that a request stops. Tell whether it does."""
        if STOPPED_CALL in parameters:
            self._calls |= dict.fromkeys(str(parameters[STOPPED_CALL]).split())
            while len(self._calls) > _MAX_REMEMBERED:
                del self._calls[next(iter(self._calls))]
        elif ONLY_FRONT in parameters:
            self._only_front = f"{parameters[ONLY_FRONT]}:"
        else:
            return False
        return True

    def has(self, call: str) -> bool:
        """Tell whether the call was stopped, or is another front's, which has ended."""
        if not call:
            return False
        return call in self._calls or not call.startswith(self._only_front)
