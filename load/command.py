"""A load test as a command: options in, a report out. ``scripts/test_perf.py`` is its entry."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from errors.base import CodedError
from load.choose_target import choose_target
from load.clients import run
from load.options import MOCK, add_options, check, plan_of
from load.statistics import Slo
from load.summary import summarize
from load.targets.target import Workload
from load.text_report import text_report

_EXIT_FAILURES, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None, *, description: str, target: str | None = None) -> int:
    """Exit code 0 also where requests failed: that is a result. 1 where none was completed."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    plan = plan_of(options)
    target, workload = asyncio.run(choose_target(options))
    summary = summarize(run(plan, target, options.processes), Slo.parse(options.slo))
    print(text_report(configuration(options, workload, target.url), summary))
    return 0 if summary.completed else _EXIT_FAILURES


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
