"""The extent of ``make bench``, and common parts of its loads."""

from typing import NamedTuple

PACE = 100.0
"""Tokens per second of the engine, per stream."""
FAST_PACE = 1000.0
"""Pace of what takes too long at the other one: 8,192 tokens."""
INPUT_TOKENS = 100
FEW_STREAMS = 24
SOME_TOKENS = 128


class Effort(NamedTuple):
    """Batches of each kind, seconds of what has no batches, the length of the streams of a capacity."""

    batches: int
    seconds: float
    capacity_tokens: int


FULL, SHORT = Effort(3, 8.0, 512), Effort(1, 2.0, 128)
