"""``make bench``: the budget table, as far as it needs no GPU. Each row is measured and gets a verdict."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from engine.machine.description import machine
from perf.bench.measure import (
    Measurement,
    batches,
    cog_target,
    measure,
    measure_in_turns,
    mock_target,
    workload,
)
from perf.engines import paced_engine
from perf.load.generator import run_together
from perf.load.plan import Plan
from perf.load.statistics import percentile
from perf.load.targets.triton import SLOT, TritonTarget
from perf.options import Options
from perf.servers import Stack, mock, whole_stack
from perf.table import table

_PACE = 100.0
_FAST_PACE = 1000.0
"""For what takes too long at the other: 8,192 tokens."""
_INPUT_TOKENS = 100
_FEW_STREAMS = 24
_MANY_TOKENS, _SOME_TOKENS = 8192, 128
_BURST, _LONG_PROMPT_TOKENS = 4, 32_000
_GAP_ROUNDS = 2


class Effort(NamedTuple):
    """How much is measured: batches of each kind, seconds of what has no batches."""

    batches: int
    seconds: float


_FULL, _SHORT = Effort(3, 8.0), Effort(1, 2.0)


@dataclass(frozen=True)
class Row:
    """A measured figure with its limit: ``at_least`` or at most. All requests must be served."""

    what: str
    value: float
    limit: float | None
    unit: str = ""
    at_least: bool = False
    not_served: int = 0
    decimals: int = 1

    @property
    def is_kept(self) -> bool:
        """None of its requests failed, and its value is within the limit, if there is one."""
        if self.limit is None or self.not_served:
            return not self.not_served
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        if not self.is_kept:
            return "**FAIL**"
        return "pass" if self.limit is not None else ""

    @property
    def measured(self) -> str:
        return f"{self.value:,.{self.decimals}f}{self.unit}"

    @property
    def budget(self) -> str:
        if self.limit is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.limit:,g}{self.unit}"


def measure_budget(effort: Effort) -> Iterator[Row]:
    """The rows, as they are measured. About 4 minutes in full, 1 short, on 2 processors."""
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name:
        folder = Path(name)
        for pace, rows in ((_PACE, _paced_rows), (0.0, _peak_rows), (_FAST_PACE, _long_rows)):
            with whole_stack(folder, {"ENGINE_DIR": str(paced_engine(folder, pace))}) as stack:
                # Every connection and thread that the rows need is there before they begin.
                _through_cog(stack, 16, Plan("batch", 256, 0.1, pause_s=0))
                yield from rows(stack, effort)


def budget_table(rows: Sequence[Row]) -> str:
    head = ["what", "budget", "measured", "not served", "verdict"]
    return table(
        head, [[row.what, row.budget, row.measured, str(row.not_served), row.verdict] for row in rows]
    )


def _paced_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    for streams, tokens, least in ((_FEW_STREAMS, 128, 98.0), (256, 512, 94.0), (512, 512, 90.0)):
        plan = batches(streams, tokens / _PACE, effort.batches)
        found = _through_cog(stack, tokens, plan)
        yield Row(
            f"{streams} streams x {tokens} tokens at {_PACE:g} tokens/s: tokens/s per stream",
            found.tokens_per_second_per_stream,
            least,
            at_least=True,
            not_served=found.not_served,
        )
    yield _added_row(stack, effort)
    yield from _together_rows(stack, effort)
    yield _gaps_row(stack, effort)


def _gaps_row(stack: Stack, effort: Effort) -> Row:
    """Streams alone and beside bursts of long prompts, in turns, so that both meet the same machine."""
    seconds = effort.seconds / 2
    streams, prompts = (
        cog_target(stack, workload(*tokens), is_streaming=True)
        for tokens in ((_INPUT_TOKENS, 256), (_LONG_PROMPT_TOKENS, 1))
    )
    alone = [(Plan("concurrency", _FEW_STREAMS, seconds), streams)]
    beside = [*alone, (Plan("batch", _BURST, seconds, pause_s=1.0), prompts)]
    gaps_s: list[list[float]] = [[], []]
    not_served = 0
    for _ in range(_GAP_ROUNDS):
        for gaps, loads in zip(gaps_s, (alone, beside), strict=True):
            found = asyncio.run(run_together(loads))
            gaps += [gap for record in found[0] for gap in record.gaps_s]
            not_served += sum(not record.is_completed for records in found for record in records)
    alone_s, beside_s = (percentile(sorted(gaps) or [0.0], 0.99) for gaps in gaps_s)
    return Row(
        f"p99 gap of {_FEW_STREAMS} streams while {_BURST} prompts of {_LONG_PROMPT_TOKENS:,} tokens begin "
        "each second / alone",
        beside_s / alone_s if alone_s else 0.0,
        2.0,
        not_served=not_served,
        decimals=2,
    )


def _added_row(stack: Stack, effort: Effort) -> Row:
    """24 streams at any time, one begun after another."""
    work = workload(_INPUT_TOKENS, _SOME_TOKENS)
    plan = Plan("rps", _FEW_STREAMS * _PACE / _SOME_TOKENS, effort.seconds)
    alone, whole = measure_in_turns(
        plan,
        2,
        (stack, TritonTarget(stack.triton_url, SLOT, work)),
        (stack, cog_target(stack, work, is_streaming=True)),
    )
    return Row(
        f"time to first token added over Triton alone, {_FEW_STREAMS} streams, median",
        (whole.first_token_ms or 0.0) - (alone.first_token_ms or 0.0),
        3.0,
        " ms",
        not_served=alone.not_served + whole.not_served,
    )


def _together_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    """24 streams begun in one moment queue up in each process on the way.

    No limit: Cog alone and Triton alone, each with nothing of ours before it, show how much of it is theirs.
    """
    work = workload(_INPUT_TOKENS, _SOME_TOKENS)
    plan = batches(_FEW_STREAMS, _SOME_TOKENS / _PACE, 1)
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name, mock(Path(name)) as cog:
        places = {
            "Triton alone": (stack, TritonTarget(stack.triton_url, SLOT, work)),
            "Cog alone, a mock behind it": (
                cog,
                mock_target(cog, work, tokens_per_second=_PACE, is_streaming=True),
            ),
            "whole stack": (stack, cog_target(stack, work, is_streaming=True)),
        }
        found = measure_in_turns(plan, max(effort.batches, 2), *places.values())
    for place, each in zip(places, found, strict=True):
        yield Row(
            f"time to first token, {_FEW_STREAMS} streams begun together, median: {place}",
            each.first_token_ms or 0.0,
            None,
            " ms",
            not_served=each.not_served,
        )


def _peak_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    plan = Plan("concurrency", 256, effort.seconds)
    found = _through_cog(stack, 256, plan)
    yield Row(
        "peak tokens/s, unpaced, 256 streams x 256 tokens",
        found.summary.tokens_per_second,
        300_000,
        at_least=True,
        not_served=found.not_served,
        decimals=0,
    )


def _long_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    streams = 8
    short = _through_cog(stack, _SOME_TOKENS, Plan("concurrency", streams, max(effort.seconds, 4.0)))
    long = _through_cog(stack, _MANY_TOKENS, batches(streams, _MANY_TOKENS / _FAST_PACE, effort.batches))
    not_served = short.not_served + long.not_served
    per_token = [each.cpu_s_per_1000_tokens() for each in (long, short)]
    yield Row(
        f"CPU per token at {_MANY_TOKENS:,} output tokens / at {_SOME_TOKENS}",
        per_token[0] / per_token[1] if per_token[1] else 0.0,
        1.2,
        not_served=not_served,
        decimals=2,
    )
    yield Row(
        f"memory after {_MANY_TOKENS:,} tokens over after {_SOME_TOKENS}",
        (long.memory_bytes - short.memory_bytes) / (1 << 20),
        32.0,
        " MiB",
        not_served=not_served,
    )


def _through_cog(stack: Stack, tokens: int, plan: Plan) -> Measurement:
    return measure(stack, cog_target(stack, workload(_INPUT_TOKENS, tokens), is_streaming=False), plan)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("bench", "Measure the budget table.")
    parser.add_argument("--short", action="store_true", help="one batch of each: less exact, about a minute")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a row fails")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    rows = []
    for row in measure_budget(_SHORT if options.short else _FULL):
        rows.append(row)
        verdict = row.verdict.strip("*") or "info"
        print(f"{verdict}: {row.what}: {row.measured}", file=sys.stderr, flush=True)
    judged = [row for row in rows if row.verdict]
    kept = sum(row.is_kept for row in judged)
    effort = "short" if options.short else "in full"
    print(f"\n{machine()}; measured {effort} in {time.monotonic() - started_s:.0f} s\n")
    print(budget_table(rows))
    print(f"\n{kept} of {len(judged)} rows kept")
    return 1 if options.strict and kept < len(judged) else 0
