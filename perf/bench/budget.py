"""The budget table, as far as it needs no GPU: each row measured, with its limit and a verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.bench.long_prompts import BURST, PROMPT_TOKENS, measure_gaps
from perf.bench.measure import (
    Measurement,
    batches,
    cog_target,
    measure,
    mock_target,
    pooled,
    slot_target,
    workload,
)
from perf.engines import paced_engine
from perf.load.plan import Plan
from perf.load.targets.target import Target
from perf.servers import Stack, mock, whole_stack
from perf.table import table

_PACE = 100.0
_FAST_PACE = 1000.0
"""For what takes too long at the other: 8,192 tokens."""
_INPUT_TOKENS = 100
_FEW_STREAMS = 24
_MANY_TOKENS, _SOME_TOKENS = 8192, 128
_FLAT_BYTES = 32 << 20

Report = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured: batches of each kind, seconds of what has no batches."""

    batches: int
    seconds: float


FULL = Effort(batches=3, seconds=8.0)
SHORT = Effort(batches=1, seconds=2.0)


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
        return self.is_within and not self.not_served

    @property
    def is_within(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        if not self.is_kept:
            return "**FAIL**"
        return "pass" if self.limit is not None else ""


def measure_budget(effort: Effort, report: Report) -> Iterator[Row]:
    """The rows, as they are measured. About 4 minutes in full, 1 short, on 2 processors."""
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name:
        folder = Path(name)
        for pace, rows in ((_PACE, _paced_rows), (0.0, _peak_rows), (_FAST_PACE, _long_rows)):
            report(f"starting the whole stack, engine at {f'{pace:g} tokens/s' if pace else 'full speed'}")
            with whole_stack(folder, {"ENGINE_DIR": str(paced_engine(folder, pace))}) as stack:
                _warm_up(stack)
                for row in rows(stack, effort):
                    report(f"{row.verdict.strip('*') or 'info'}: {row.what}: {_value(row)}")
                    yield row


def budget_table(rows: Sequence[Row]) -> str:
    head = ["what", "budget", "measured", "not served", "verdict"]
    lines = [[row.what, _limit(row), _value(row), str(row.not_served), row.verdict] for row in rows]
    return table(head, lines)


def _limit(row: Row) -> str:
    if row.limit is None:
        return ""
    return (
        f"{'>=' if row.at_least else '<='} {row.limit:,.{0 if row.limit == int(row.limit) else 1}f}{row.unit}"
    )


def _value(row: Row) -> str:
    return f"{row.value:,.{row.decimals}f}{row.unit}"


def _paced_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    for streams, tokens, least in ((_FEW_STREAMS, 128, 98.0), (256, 512, 94.0), (512, 512, 90.0)):
        plan = batches(streams, tokens / _PACE, effort.batches)
        found = _through_cog("paced", stack, tokens, plan)
        yield Row(
            f"{streams} streams x {tokens} tokens at {_PACE:g} tokens/s: tokens/s per stream",
            found.tokens_per_second_per_stream,
            least,
            at_least=True,
            not_served=_not_served(found),
        )
    yield _added_row(stack, effort)
    yield from _together_rows(stack, effort)
    yield _gaps_row(stack, effort)


def _gaps_row(stack: Stack, effort: Effort) -> Row:
    gaps = measure_gaps(stack, effort.seconds / 2)
    return Row(
        f"p99 gap of 24 streams while {BURST} prompts of {PROMPT_TOKENS:,} tokens begin each second / alone",
        gaps.beside_s / gaps.alone_s if gaps.alone_s else 0.0,
        2.0,
        not_served=gaps.not_served,
        decimals=2,
    )


def _added_row(stack: Stack, effort: Effort) -> Row:
    """24 streams at any time, one begun after another."""
    work = workload(_INPUT_TOKENS, _SOME_TOKENS)
    plan = Plan("rps", _FEW_STREAMS * _PACE / _SOME_TOKENS, effort.seconds)
    alone, whole = _in_turns(
        plan,
        2,
        (stack, slot_target(stack, work)),
        (stack, cog_target(stack, work, is_streaming=True)),
    )
    return Row(
        f"time to first token added over Triton alone, {_FEW_STREAMS} streams, median",
        ((whole.first_token_s or 0.0) - (alone.first_token_s or 0.0)) * 1000,
        3.0,
        " ms",
        not_served=_not_served(alone) + _not_served(whole),
    )


def _together_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    """24 streams begun in one moment queue up in each process on the way.

    No limit: Cog alone and Triton alone, each with nothing of ours before it, tell how much of it is theirs.
    """
    work = workload(_INPUT_TOKENS, _SOME_TOKENS)
    plan = batches(_FEW_STREAMS, _SOME_TOKENS / _PACE, 1)
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name, mock(Path(name)) as cog:
        found = _in_turns(
            plan,
            max(effort.batches, 2),
            (stack, slot_target(stack, work)),
            (cog, mock_target(cog, work, tokens_per_second=_PACE, is_streaming=True)),
            (stack, cog_target(stack, work, is_streaming=True)),
        )
    for place, each in zip(
        ("Triton alone", "Cog alone, a mock behind it", "whole stack"), found, strict=True
    ):
        yield Row(
            f"time to first token, {_FEW_STREAMS} streams begun together, median: {place}",
            (each.first_token_s or 0.0) * 1000,
            None,
            " ms",
            not_served=_not_served(each),
        )


def _in_turns(plan: Plan, rounds: int, *places: tuple[Stack, Target]) -> list[Measurement]:
    """Each place ``rounds`` times in turn, so that all meet the same machine."""
    parts: list[list[Measurement]] = [[] for _ in places]
    for _ in range(rounds):
        for (stack, target), found in zip(places, parts, strict=True):
            found.append(measure("in turn", stack, target, plan))
    return [pooled(found) for found in parts]


def _peak_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    plan = Plan("concurrency", 256, effort.seconds)
    found = _through_cog("peak", stack, 256, plan)
    yield Row(
        "peak tokens/s, unpaced, 256 streams x 256 tokens",
        found.summary.tokens_per_second,
        300_000,
        at_least=True,
        not_served=_not_served(found),
        decimals=0,
    )


def _long_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    streams = 8
    short = _through_cog("short", stack, _SOME_TOKENS, Plan("concurrency", streams, max(effort.seconds, 4.0)))
    long = _through_cog(
        "long", stack, _MANY_TOKENS, batches(streams, _MANY_TOKENS / _FAST_PACE, effort.batches)
    )
    not_served = _not_served(short) + _not_served(long)
    per_token = [each.server_cpu_s_per_1000_tokens for each in (long, short)]
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
        _FLAT_BYTES / (1 << 20),
        " MiB",
        not_served=not_served,
    )


def _warm_up(stack: Stack) -> None:
    """Every connection and thread that the rows need is there before they begin."""
    _through_cog("warm-up", stack, 16, Plan("batch", 256, 0.1, pause_s=0))


def _through_cog(name: str, stack: Stack, tokens: int, plan: Plan) -> Measurement:
    return measure(name, stack, cog_target(stack, workload(_INPUT_TOKENS, tokens), is_streaming=False), plan)


def _not_served(measurement: Measurement) -> int:
    summary = measurement.summary
    return summary.failed + summary.busy
