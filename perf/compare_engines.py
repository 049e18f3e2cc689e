"""Put the same load on several engines, each in the whole stack, and compare them.

    python -m perf compare-engines hf=engines/hf vllm=engines/vllm@.venv-vllm/bin/python

Each engine is NAME=PLACE[@PYTHON]: an engine folder or engine.tar of any kind, and the Python of its engine
environment (default: that of `make setup`). All should hold the same model. Prints time to first token,
inter-token latency and throughput by concurrency; --report writes an HTML page with charts.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.cache.store import open_engine
from engine.directory import load as load_engine
from engine.machine.description import machine
from engine.machine.python import engine_python
from errors.requests import InvalidInput
from perf.load.chart import Series, chart
from perf.load.clients import run
from perf.load.html_report import card, page
from perf.load.plan import Plan
from perf.load.prompt import guessed_prompt
from perf.load.summary import summarize
from perf.load.targets.cog import CogTarget, runner_inputs
from perf.load.targets.target import Workload
from perf.options import Options
from perf.servers import whole_stack
from perf.table import table

_HEAD = ("engine", "kind", "concurrency", "tokens/s", "first token, ms", "inter-token, ms", "failed")
_WARM_UP_S = 1.0
_MOST_ENGINES = 4
"""As many as the charts have colours."""


@dataclass(frozen=True)
class Contender:
    """One engine to be compared."""

    name: str
    place: Path
    python: str


def parse_contenders(texts: Sequence[str]) -> list[Contender]:
    """Raises InvalidInput."""
    if len(texts) > _MOST_ENGINES:
        raise InvalidInput(name="engines", expected=f"at most {_MOST_ENGINES}", value=len(texts))
    contenders: dict[str, Contender] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        place, _, python = rest.partition("@")
        if not (name and place):
            raise InvalidInput(name="engine", expected="NAME=PLACE or NAME=PLACE@PYTHON", value=text)
        if name in contenders:
            raise InvalidInput(name="engine", expected="a name of its own for each", value=name)
        contenders[name] = Contender(name, Path(place), python or engine_python())
    return list(contenders.values())


@dataclass(frozen=True)
class Point:
    """One engine at one concurrency. Times in seconds, medians; None where nothing was completed."""

    engine: str
    kind: str
    concurrency: int
    tokens_per_second: float
    first_token_s: float | None
    inter_token_s: float | None
    failed: int


def measure(contender: Contender, options: argparse.Namespace, folder: Path) -> list[Point]:
    """Start the stack on the engine, warm it up, load it with each concurrency in turn."""
    place = contender.place
    engine = load_engine(place) if place.is_dir() else open_engine(str(place), folder / "cache")
    workload = Workload(
        guessed_prompt(options.n_input_tokens), options.n_input_tokens, options.n_output_tokens
    )
    folder.mkdir(exist_ok=True)
    points = []
    settings = {"ENGINE_DIR": str(engine.path)}
    with whole_stack(folder, settings, engine_python=contender.python) as stack:
        target = CogTarget(stack.cog_url, runner_inputs(workload), is_streaming=True)
        run(Plan("concurrency", max(options.concurrency), _WARM_UP_S), target)
        for concurrency in options.concurrency:
            summary = summarize(run(Plan("concurrency", concurrency, options.duration), target))
            first, inter = summary.first_token_s, summary.inter_token_s
            point = Point(
                contender.name,
                engine.manifest.engine_kind,
                concurrency,
                summary.tokens_per_second,
                first.p50 if first else None,
                inter.p50 if inter else None,
                summary.failed,
            )
            points.append(point)
            print(
                ", ".join(map(": ".join, zip(_HEAD, _cells(point), strict=True))), file=sys.stderr, flush=True
            )
    return points


def _cells(point: Point) -> list[str]:
    times = [
        "-" if value_s is None else f"{1000 * value_s:.1f}"
        for value_s in (point.first_token_s, point.inter_token_s)
    ]
    speed = f"{point.tokens_per_second:,.0f}"
    return [point.engine, point.kind, str(point.concurrency), speed, *times, str(point.failed)]


def report(points: Sequence[Point], facts: str) -> str:
    """One self-contained page: three charts and the table."""
    charts = [
        _chart(points, "throughput, tokens/s", "tokens_per_second", 1),
        _chart(points, "time to first token, ms", "first_token_s", 1000),
        _chart(points, "inter-token latency, ms", "inter_token_s", 1000),
    ]
    body = _row("th", _HEAD) + "".join(_row("td", _cells(point)) for point in points)
    parts = [
        f'<div class="charts">{"".join(charts)}</div>',
        f'<div class="card scroll"><table>{body}</table></div>',
    ]
    return page("Engines compared", facts, parts)


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _chart(points: Sequence[Point], title: str, field: str, factor: int) -> str:
    lines: dict[str, list[tuple[float, float]]] = {point.engine: [] for point in points}
    for point in points:
        if (value := getattr(point, field)) is not None:
            lines[point.engine].append((float(point.concurrency), factor * value))
    series = [
        Series(name, line, color=f"series-{index}") for index, (name, line) in enumerate(lines.items(), 1)
    ]
    return card(title, "", chart(series, x="concurrency", y=title))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("compare-engines", __doc__)
    parser.add_argument("engines", nargs="+", metavar="NAME=PLACE[@PYTHON]")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], help="streams at once")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds of each load")
    parser.add_argument("--n_input_tokens", type=int, default=100, help="of each request")
    parser.add_argument("--n_output_tokens", type=int, default=100, help="of each request")
    parser.add_argument("--report", type=Path, metavar="HTML", help="write a page with charts")
    parser.add_argument("--json", type=Path, help="write the figures")
    options = parser.parse_args(arguments)
    points: list[Point] = []
    contenders = parse_contenders(options.engines)
    # Wrong options are refused before anything starts.
    for concurrency in options.concurrency:
        Plan("concurrency", concurrency, options.duration)
    for path in filter(None, (options.report, options.json)):
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InvalidInput(name="file", expected="one in a folder that exists", value=path)
    with tempfile.TemporaryDirectory() as folder:
        for number, contender in enumerate(contenders):
            points += measure(contender, options, Path(folder) / str(number))
    facts = f"{machine()}; {options.n_input_tokens} tokens in, {options.n_output_tokens} out, by Cog's events"
    by_load = sorted(points, key=lambda each: each.concurrency)
    print(f"{facts}\n\n{table(_HEAD, list(map(_cells, by_load)))}")
    if options.report:
        options.report.write_text(report(by_load, facts))
    if options.json:
        options.json.write_text(json.dumps([vars(each) for each in points], indent=1) + "\n")
    return 0
