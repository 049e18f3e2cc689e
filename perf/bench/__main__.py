"""``make bench``: prints the budget table, a row as soon as it is measured to the terminal's other stream."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from errors.coded_error import CodedError
from perf.bench.budget import FULL, SHORT, budget_table, measure_budget
from perf.bench.machine import machine
from perf.bench.servers import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf.bench", description="Measure the budget table.")
    parser.add_argument("--short", action="store_true", help="one batch of each: less exact, about a minute")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a row is not kept")
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    try:
        rows = list(measure_budget(SHORT if options.short else FULL, _report))
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 2
    judged = [row for row in rows if row.limit is not None or not row.is_kept]
    kept = sum(row.is_kept for row in judged)
    effort = "short" if options.short else "in full"
    print(f"\n{machine()}; measured {effort} in {time.monotonic() - started_s:.0f} s\n")
    print(budget_table(rows))
    print(f"\n{kept} of {len(judged)} rows kept")
    return 1 if options.strict and kept < len(judged) else 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_program(main)
