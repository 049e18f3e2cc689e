"""Coalescing: tokens wait for the next ones of their stream where chunks cost too much.

An idle process passes on all tokens at once. A busy one waits for the stream's next tokens, so that a chunk
has those of two engine steps, or of all steps within 50 ms. It knows what a chunk costs it: its CPU time
divided by its chunks. It is busy if the chunks of all its streams would otherwise take too much of its time.
"""

import time
from collections.abc import Callable

_SMOOTH_GAP_S = 0.05
"""Longest time over which more than two steps become one chunk."""
_LONGEST_GAP_S = 0.1
_WINDOW_S = 0.1
"""Interval at which the cost is measured."""
_MEAN_CHUNKS = 1000
"""Number of last chunks whose mean is the cost."""


class Coalescing:
    """The state of a process. Making the chunks of all streams may take 1/``factor`` of its time."""

    def __init__(self, factor: float, cpu_s: Callable[[], float] = time.process_time) -> None:
        self._factor = factor
        self._cpu_s = cpu_s
        self._measured_s = 0.0
        self._measured_cpu_s = cpu_s()
        self._num_chunks = 0
        self._chunk_cpu_s = 0.0
        self._gap_s = 0.0
        """Time between two chunks of a stream."""

    def taken(self) -> None:
        """Count a chunk that a stream has taken."""
        self._num_chunks += 1

    def measure(self, num_streams: int, now_s: float) -> None:
        """Measure the cost. Call it often, with the number of open streams."""
        if now_s - self._measured_s < _WINDOW_S:
            return
        cpu_s = self._cpu_s()
        if self._num_chunks:
            cost_s = (cpu_s - self._measured_cpu_s) / self._num_chunks
            weight = min(1.0, self._num_chunks / _MEAN_CHUNKS)
            self._chunk_cpu_s += weight * (cost_s - self._chunk_cpu_s)
        self._measured_s, self._measured_cpu_s, self._num_chunks = now_s, cpu_s, 0
        self._gap_s = min(self._factor * self._chunk_cpu_s * num_streams, _LONGEST_GAP_S)

    def holds(self, waited_s: float, step_s: float, num_arrivals: int) -> bool:
        """Return True if tokens that arrived wait for the next ones, due in about ``step_s``.

        ``waited_s``: time since the stream's last chunk; ``num_arrivals`` since then, this one included.
        """
        gap_s = waited_s + step_s
        return gap_s <= self._gap_s and (num_arrivals == 1 or gap_s <= _SMOOTH_GAP_S)
