"""Whether streams stall while others begin with long prompts: their gaps, alone and with bursts of such."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perf.bench.measure import cog_target, workload
from perf.load.generator import Generator
from perf.load.plan import Plan
from perf.load.record import Record
from perf.load.statistics import percentile
from perf.servers import Stack

PROMPT_TOKENS = 32_000
BURST = 4
"""Prompts at once."""
_PAUSE_S = 1.0
_STREAMS = 24
_STREAM_TOKENS = 256
_INPUT_TOKENS = 100


@dataclass(frozen=True)
class Gaps:
    """99th percentiles of the streams' gaps, in seconds."""

    alone_s: float
    beside_s: float
    not_served: int


def measure_gaps(stack: Stack, seconds: float, rounds: int = 2) -> Gaps:
    """Streams alone and beside bursts, in turns, so that both meet the same machine."""
    alone: list[Record] = []
    beside: list[Record] = []
    long: list[Record] = []
    for _ in range(rounds):
        alone += asyncio.run(_streams(stack, seconds))
        with_bursts = asyncio.run(_both(stack, seconds))
        beside += with_bursts[0]
        long += with_bursts[1]
    not_served = sum(not each.is_completed for each in [*alone, *beside, *long])
    return Gaps(_p99(alone), _p99(beside), not_served)


async def _streams(stack: Stack, seconds: float) -> list[Record]:
    work = workload(_INPUT_TOKENS, _STREAM_TOKENS)
    plan = Plan("concurrency", _STREAMS, seconds)
    return await Generator(plan, cog_target(stack, work, is_streaming=True)).run()


async def _both(stack: Stack, seconds: float) -> list[list[Record]]:
    work = workload(PROMPT_TOKENS, 1)
    plan = Plan("batch", BURST, seconds, pause_s=_PAUSE_S)
    bursts = Generator(plan, cog_target(stack, work, is_streaming=True)).run()
    return list(await asyncio.gather(_streams(stack, seconds), bursts))


def _p99(records: list[Record]) -> float:
    gaps_s = sorted(gap for each in records if each.is_completed for gap in each.gaps_s)
    return percentile(gaps_s, 0.99) if gaps_s else 0.0
