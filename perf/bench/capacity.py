"""Capacity: how many streams a server carries at nearly the engine's pace."""

from collections.abc import Callable, Iterator

from perf.bench.effort import INPUT_TOKENS, PACE, Effort
from perf.bench.measure import cog_target, measure, mock_target, openai_target, workload
from perf.bench.row import Row, ratio
from perf.load.plan import Plan
from perf.load.targets.target import Target
from perf.load.targets.triton import TritonTarget
from perf.servers import Stack
from runner.triton_server.model_names import SLOT

_COMPARED = (
    ("Cog", "Cog with a mock", 6.0),
    ("Cog", "the slot by Triton", 0.8),
    ("API server", "the slot by Triton", 0.9),
)
_LEAST_SHARE = 0.97
_LEVELS = (4, 8, 16, 32, 64, 128, 256, 512)
_FIRST_LEVEL = 64
_START_SHARE = 0.5
"""Part of a stream's length during which the streams begin: they are all there for as long."""


def capacity_rows(stack: Stack, mock: Stack, effort: Effort) -> Iterator[Row]:
    """Measure the servers in an order in which those that are compared follow each other."""
    work = workload(INPUT_TOKENS, effort.capacity_tokens)
    targets: dict[str, tuple[Stack, Target]] = {
        "Cog with a mock": (mock, mock_target(mock, work, tokens_per_second=PACE, is_streaming=False)),
        "Cog": (stack, cog_target(stack, work, is_streaming=False)),
        "the slot by Triton": (stack, TritonTarget(stack.triton_url, SLOT, work)),
        "API server": (stack, openai_target(stack, work)),
    }
    not_served = 0

    def pace_of(place: tuple[Stack, Target]) -> Callable[[int], float]:
        def pace(streams: int) -> float:
            nonlocal not_served
            duration_s = _START_SHARE * work.output_tokens / PACE
            found = measure(*place, Plan("rps", streams / duration_s, duration_s))
            not_served += found.not_served
            return found.tokens_per_second_per_stream / PACE

        return pace

    carried = {name: capacity(pace_of(place)) for name, place in targets.items()}
    for name, other, least in _COMPARED:
        figures = f"{carried[name]:.0f} / {carried[other]:.0f} streams"
        what = f"capacity at {PACE:g} tokens/s, {name} / {other} ({figures})"
        yield ratio(what, carried[name], carried[other], at_least=least, not_served=not_served)


def capacity(pace: Callable[[int], float]) -> float:
    """Return the number of streams that a server carries at the least share of the pace that is allowed.

    ``pace`` measures the share for a number of streams. Between the last number that is carried and the first
    one that is not, the share is interpolated as a line over the logarithm of the number.
    """
    index = _LEVELS.index(_FIRST_LEVEL)
    carried = lost = None
    while 0 <= index < len(_LEVELS) and None in (carried, lost):
        level = (_LEVELS[index], pace(_LEVELS[index]))
        if level[1] >= _LEAST_SHARE:
            carried, index = level, index + 1
        else:
            lost, index = level, index - 1
    if carried is None or lost is None:
        return float(_LEVELS[-1] if carried else 0)
    (few, high), (many, low) = carried, lost
    return float(few * (many / few) ** ((high - _LEAST_SHARE) / (high - low)))
