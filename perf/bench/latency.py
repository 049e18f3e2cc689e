"""Rows about latency: the first token, and gaps beside long prompts."""

import asyncio
from collections.abc import Iterator

from perf.bench.effort import FEW_STREAMS, INPUT_TOKENS, PACE, SOME_TOKENS, Effort
from perf.bench.measure import batches, cog_target, measure_cog, measure_in_turns, mock_target, workload
from perf.bench.row import Row, absolute
from perf.load.generator import run_together
from perf.load.plan import Plan
from perf.load.statistics import distribution
from perf.load.targets.triton import TritonTarget
from perf.servers import Stack
from runner.triton_server.model_names import SLOT

_LONG_PROMPTS_PER_S, _LONG_PROMPT_TOKENS = 16, 32_000
_GAP_ROUNDS = 2


def added_row(stack: Stack, effort: Effort) -> Row:
    """Begin streams one after another, so that there are 24 at any time."""
    work = workload(INPUT_TOKENS, SOME_TOKENS)
    plan = Plan("rps", FEW_STREAMS * PACE / SOME_TOKENS, effort.seconds)
    targets = TritonTarget(stack.triton_url, SLOT, work), cog_target(stack, work, is_streaming=True)
    alone, whole = measure_in_turns(plan, 2, *((stack, each) for each in targets))
    alone_ms, whole_ms = (each.first_token_ms or 0.0 for each in (alone, whole))
    what = f"time to first token, {FEW_STREAMS} streams, median: Cog, added to Triton alone"
    what += f" ({alone_ms:.1f} ms)"
    added = 100 * (whole_ms / alone_ms - 1) if alone_ms else 0.0
    return Row(what, added, 15.0, " %", False, alone.not_served + whole.not_served)


def together_row(stack: Stack, mock: Stack, effort: Effort) -> Row:
    """Begin 24 streams in one moment: they queue up in each process on the way, most of all in Cog's."""
    work = workload(INPUT_TOKENS, SOME_TOKENS)
    places = (
        (mock, mock_target(mock, work, tokens_per_second=PACE, is_streaming=True)),
        (stack, cog_target(stack, work, is_streaming=True)),
    )
    plan = batches(FEW_STREAMS, SOME_TOKENS / PACE, 1)
    alone, whole = measure_in_turns(plan, max(effort.batches, 2), *places)
    alone_ms, whole_ms = (each.first_token_ms or 0.0 for each in (alone, whole))
    what = f"time to first token, {FEW_STREAMS} streams begun together, median: Cog / Cog with a mock "
    what += f"({whole_ms:.1f} / {alone_ms:.1f} ms)"
    return Row(what, whole_ms / (alone_ms or 1), 1.0, "", False, alone.not_served + whole.not_served, 2)


def gaps_row(stack: Stack, effort: Effort) -> Row:
    """Measure streams alone and beside long prompts, in turns, so that both meet the same machine."""
    streams, prompts = (
        cog_target(stack, workload(*tokens), is_streaming=True)
        for tokens in ((INPUT_TOKENS, 256), (_LONG_PROMPT_TOKENS, 1))
    )
    alone = [(Plan("concurrency", FEW_STREAMS, effort.seconds / 2), streams)]
    beside = [*alone, (Plan("rps", _LONG_PROMPTS_PER_S, effort.seconds / 2 + 256 / PACE), prompts)]
    gaps_s: list[list[float]] = [[], []]
    not_served = 0
    for _ in range(_GAP_ROUNDS):
        for gaps, loads in zip(gaps_s, (alone, beside), strict=True):
            found = asyncio.run(run_together(loads))
            gaps += [gap for record in found[0] for gap in record.gaps_s]
            not_served += sum(not record.is_completed for records in found for record in records)
    alone_s, beside_s = (each.p99 if (each := distribution(gaps)) else 0.0 for gaps in gaps_s)
    what = f"p99 gap of {FEW_STREAMS} streams beside {_LONG_PROMPTS_PER_S} prompts of "
    what += f"{_LONG_PROMPT_TOKENS:,} tokens a second / alone"
    return Row(what, beside_s / (alone_s or 1), 2.0, "", False, not_served, 2)


def pace_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    """Measure the pace of many streams through Cog, on the machine that the limits are for."""
    for streams, tokens, least in ((FEW_STREAMS, 128, 98.0), (256, 512, 97.0), (512, 512, 95.0)):
        found = measure_cog(stack, tokens, batches(streams, tokens / PACE, effort.batches))
        what = f"{streams} streams x {tokens} tokens at {PACE:g} tokens/s: tokens/s per stream"
        yield absolute(what, found.tokens_per_second_per_stream, least, not_served=found.not_served)
