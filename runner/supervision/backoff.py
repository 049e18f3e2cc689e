"""How long to wait before the next attempt."""

from __future__ import annotations

_FIRST_S = 0.5
LONGEST_S = 30.0


class Backoff:
    """Twice as long each time, up to ``LONGEST_S``."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_S)
        return wait_s
