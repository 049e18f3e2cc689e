"""A load test as a command: ``python -m perf load``, and ``scripts/test_perf.py`` with any Python."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from errors.coded_error import CodedError
from errors.requests import InvalidInput
from perf.load.choose_target import choose_target
from perf.load.clients import run
from perf.load.export import records_csv, summary_json
from perf.load.html_report import html_report
from perf.load.options import MOCK, add_options, check, plan_of
from perf.load.statistics import parse_slo
from perf.load.summary import summarize
from perf.load.targets.target import Workload
from perf.load.text_report import text_report
from perf.options import Options

_EXIT_FAILURES, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130


def main(
    arguments: Sequence[str] | None = None,
    *,
    description: str = "Load test of one server.",
    prog: str | None = None,
    target: str | None = None,
) -> int:
    """Exit code 0 also where requests failed: that is a result. 1 where none was completed."""
    parser = Options("load", description, prog)
    add_options(parser)
    parser.set_defaults(target=target)
    options = parser.parse_args(arguments)
    try:
        return _test(options)
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


def _test(options: argparse.Namespace) -> int:
    check(options)
    plan, slo = plan_of(options), parse_slo(options.slo)
    for path in filter(None, (options.json, options.csv, options.report)):
        # Before the test rather than after it.
        if path != "-" and not os.access(Path(path).parent, os.W_OK):
            raise InvalidInput(name="file", expected="in a folder that can be written to", value=path)
    target, workload = asyncio.run(choose_target(options))
    done = run(plan, target, options.processes)
    summary = summarize(done, slo)
    facts = configuration(options, workload, target.url)
    if options.json != "-":
        print(text_report(facts, summary))
    if options.json:
        _write(options.json, summary_json(facts, summary))
    if options.csv:
        _write(options.csv, records_csv(done.records))
    if options.report:
        _write(options.report, html_report(facts, summary, done.records))
    return 0 if summary.completed else _EXIT_FAILURES


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text, end="")
        return
    Path(path).write_text(text, encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def configuration(options: argparse.Namespace, workload: Workload, url: str) -> dict[str, str]:
    """The lines under "Test Configuration", as the documented report has them, and what else was chosen."""
    is_mock = options.target == MOCK
    lines = {"Output Method": options.output_method or "yield"} if is_mock else {}
    lines |= {
        "Mode": options.unit,
        "Rate": f"{options.rate} {options.unit}",
        "Duration": f"{options.duration:g} seconds",
        "Output tokens": str(workload.output_tokens),
    }
    if is_mock:
        lines["Tokens per second"] = f"{options.tps or 100:g}"
    else:
        lines["Input tokens"] = str(workload.input_tokens)
    return lines | {"Target": f"{options.target} at {url}"}
