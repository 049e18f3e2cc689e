"""Load test of cog-triton, its mock, Triton, an OpenAI server or a model on Replicate (Python 3.10 or newer).

    python3 scripts/test_perf.py --target cog-triton --rate 8 --unit rps --duration 30 \\
        --n_input_tokens 100 --n_output_tokens 100
    python3 scripts/test_perf.py --unit batch --duration 10 --tps 100 --n_output_tokens 128 \\
        --output_method yield --rate 24                              # the mock (mock_cog_triton/)
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from engine.machine.description import machine
from engine.machine.gpu import visible_gpus
from errors.requests import InvalidInput
from perf.load.choose_target import choose_target
from perf.load.generator import run
from perf.load.html_report import html_report
from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.options import COG, MOCK, OPENAI, TRITON, add_options, check
from perf.load.plan import Plan
from perf.load.statistics import parse_slo
from perf.load.summary import summarize
from perf.load.targets.target import Workload
from perf.load.text_report import records_csv, summary_json, text_report
from perf.options import Options

_VERSION_TIMEOUT_S = 10.0
_VERSION_PATHS = {COG: "/health-check", MOCK: "/health-check", TRITON: "/v2", OPENAI: "/version"}
"""Paths at which a server may tell its version: Cog, Triton, vLLM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a load test. Return 1 if no request was completed; else 0, as failed requests are a result."""
    parser = Options("load", __doc__)
    if (script := Path(sys.argv[0])).name == "test_perf.py":
        parser.prog = script.name
    add_options(parser)
    options = parser.parse_args(arguments)
    check(options)
    is_poisson = options.arrivals == "poisson"
    plan = Plan(options.unit, options.rate, options.duration, options.pause, is_poisson, options.timeout)
    slo = parse_slo(options.slo)
    for path in filter(None, (options.json, options.csv, options.report)):
        # Before the test rather than after it.
        if path != "-" and (Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK)):
            raise InvalidInput(name="file", expected="a file in a folder that can be written to", value=path)
    target, workload = asyncio.run(choose_target(options))
    facts = configuration(options, workload, target.url)
    facts |= asyncio.run(surroundings(options.target, target.url))
    done = run(plan, target)
    summary = summarize(done, slo, workload.output_tokens if workload.is_fixed_length else None)
    if options.json != "-":
        print(text_report(facts, summary))
    if options.json:
        _write(options.json, summary_json(facts, summary))
    if options.csv:
        _write(options.csv, records_csv(done.records))
    if options.report:
        _write(options.report, html_report(facts, summary, done.records))
    return 0 if summary.completed else 1


def _write(path: str, text: str) -> None:
    if path == "-":
        print(text, end="")
        return
    Path(path).write_text(text, encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def configuration(options: argparse.Namespace, workload: Workload, url: str) -> dict[str, str]:
    """Return the lines under "Test Configuration" of the documented report, and what else was chosen."""
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


async def surroundings(target: str, url: str) -> dict[str, str]:
    """Describe when and where figures are taken, and the server of ``target``, if it tells its version."""
    gpus = [gpu.name or f"GPU of SM {gpu.sm}" for gpu in visible_gpus()]
    lines = {
        "Date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "Load generator": ", ".join([machine(), *gpus]),
    }
    path = _VERSION_PATHS.get(target)
    versions = "" if path is None else await _versions(f"{url}{path}")
    return lines | ({"Server": versions} if versions else {})


async def _versions(url: str) -> str:
    try:
        with closing(HttpClient(_VERSION_TIMEOUT_S)) as http:
            document = json.loads((await http.send(Request("GET", url, {}))).body)
        version = document["version"]
    except (RequestFailed, ValueError, KeyError, TypeError):
        return ""
    if isinstance(version, dict):
        return ", ".join(f"{name} {each}" for name, each in version.items() if each)
    return f"{document.get('name', 'version')} {version}"
