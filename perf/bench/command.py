"""``make bench``: prints the budget table; each row goes to stderr as soon as it is measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from engine.machine.description import machine
from perf.bench.budget import FULL, SHORT, budget_table, measure_budget
from perf.options import Options


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("bench", "Measure the budget table.")
    parser.add_argument("--short", action="store_true", help="one batch of each: less exact, about a minute")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a row fails")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    rows = list(measure_budget(SHORT if options.short else FULL, _report))
    judged = [row for row in rows if row.limit is not None or not row.is_kept]
    kept = sum(row.is_kept for row in judged)
    effort = "short" if options.short else "in full"
    print(f"\n{machine()}; measured {effort} in {time.monotonic() - started_s:.0f} s\n")
    print(budget_table(rows))
    print(f"\n{kept} of {len(judged)} rows kept")
    return 1 if options.strict and kept < len(judged) else 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
