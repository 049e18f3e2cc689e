"""``make bench``: the budget table, as far as it needs no GPU. Each row is measured and gets a verdict.

Most rows are ratios to references of the same run, so that they mean the same on every machine: Cog with a
mock (no Triton), the slot through Triton, and the floor. Absolute limits are judged on the machine that they
name.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.machine.description import machine
from perf.bench import layers
from perf.bench.capacity import capacity_rows
from perf.bench.cost import floor_row, long_rows, peak_rows, start_rows, transfer_row
from perf.bench.effort import FAST_PACE, FULL, PACE, SHORT, Effort
from perf.bench.latency import added_row, gaps_row, pace_rows, together_row
from perf.bench.measure import measure_cog
from perf.bench.row import REFERENCE_MACHINE, Row, budget_table
from perf.engines import paced_engine
from perf.load.plan import Plan
from perf.options import Options
from perf.servers import Stack, mock, whole_stack


def measure_budget(effort: Effort) -> Iterator[Row]:
    """Measure the rows, one after another. About 6 minutes in full, 2 short, on 2 processors."""
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name, mock(Path(name)) as cog:
        folder = Path(name)
        for pace in (PACE, 0.0, FAST_PACE):
            settings = {"ENGINE_DIR": str(paced_engine(folder, pace))}
            with whole_stack(folder, settings) as stack:
                # Every connection and thread that the rows need is there before they begin.
                measure_cog(stack, 16, Plan("batch", 256, 0.1, pause_s=0))
                yield from _rows(pace, stack, cog, effort)
    yield transfer_row(effort)


def _rows(pace: float, stack: Stack, cog: Stack, effort: Effort) -> Iterator[Row]:
    if pace == PACE:
        yield from capacity_rows(stack, cog, effort)
        yield added_row(stack, effort)
        yield together_row(stack, cog, effort)
        yield gaps_row(stack, effort)
        yield from pace_rows(stack, effort)
        yield floor_row(stack, effort)
    elif pace == FAST_PACE:
        yield from long_rows(stack, effort)
    else:
        yield from start_rows(stack, cog, effort)
        yield from peak_rows(stack, effort)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("bench", "Measure the budget table.")
    parser.add_argument("--layers", action="store_true", help="put the same load on each layer of the stack")
    parser.add_argument("--short", action="store_true", help="one batch of each: less exact, faster")
    options = parser.parse_args(arguments)
    effort = SHORT if options.short else FULL
    if options.layers:
        print(layers.report(effort))
        return 0
    started_s = time.monotonic()
    rows = []
    for row in measure_budget(effort):
        rows.append(row)
        verdict = row.verdict.strip("*") or "info"
        print(f"{verdict}: {row.what}: {row.measured}", file=sys.stderr, flush=True)
    judged = [row for row in rows if row.verdict]
    kept = sum(row.is_kept for row in judged)
    extent = "short" if options.short else "in full"
    print(f"\n{machine()}; measured {extent} in {time.monotonic() - started_s:.0f} s\n")
    print(budget_table(rows))
    print(
        "\nMost rows compare this stack with another of this run (Cog with a mock, Triton, a bare server); "
        "FAIL: it is slower than this project allows itself, or requests were not served."
    )
    print(f"\n{kept} of {len(judged)} rows kept; a limit without a verdict is for {REFERENCE_MACHINE}")
    return 0
