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
from collections.abc import Callable, Sequence
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
from perf.load.summary import Summary, summarize
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

    @classmethod
    def parse(cls, text: str) -> Contender:
        name, equals, rest = text.partition("=")
        place, _, python = rest.partition("@")
        if not (name and equals and place):
            raise InvalidInput(name="engine", expected="NAME=PLACE or NAME=PLACE@PYTHON", value=text)
        return cls(name, Path(place), python or engine_python())


def parse_contenders(texts: Sequence[str]) -> list[Contender]:
    """Raises InvalidInput."""
    contenders = [Contender.parse(text) for text in texts]
    if len(contenders) > _MOST_ENGINES:
        raise InvalidInput(name="engines", expected=f"at most {_MOST_ENGINES}", value=len(contenders))
    names = [each.name for each in contenders]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(name="engine", expected="a name of its own for each", value=name)
    return contenders


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
            points.append(_point(contender.name, engine.manifest.engine_kind, concurrency, summary))
            print(_line(points[-1]), file=sys.stderr, flush=True)
    return points


def _point(name: str, kind: str, concurrency: int, summary: Summary) -> Point:
    first, inter = summary.first_token_s, summary.inter_token_s
    return Point(
        name,
        kind,
        concurrency,
        summary.tokens_per_second,
        first.p50 if first else None,
        inter.p50 if inter else None,
        summary.failed,
    )


def _line(point: Point) -> str:
    return (
        f"{point.engine} ({point.kind}) at {point.concurrency}: {point.tokens_per_second:,.0f} tokens/s, "
        f"first token {_ms(point.first_token_s)} ms, then {_ms(point.inter_token_s)} ms each"
    )


def points_table(points: Sequence[Point]) -> str:
    """A row for each engine and concurrency."""
    return table(_HEAD, _rows(points))


def _rows(points: Sequence[Point]) -> list[list[str]]:
    return [
        [
            each.engine,
            each.kind,
            str(each.concurrency),
            f"{each.tokens_per_second:,.0f}",
            _ms(each.first_token_s),
            _ms(each.inter_token_s),
            str(each.failed),
        ]
        for each in sorted(points, key=lambda each: each.concurrency)
    ]


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{1000 * value_s:.1f}"


def report(points: Sequence[Point], facts: str) -> str:
    """One self-contained page: three charts and the table."""
    charts = [
        _chart(points, "throughput, tokens/s", lambda each: each.tokens_per_second),
        _chart(points, "time to first token, ms", lambda each: _scaled(each.first_token_s)),
        _chart(points, "inter-token latency, ms", lambda each: _scaled(each.inter_token_s)),
    ]
    body = _row("th", _HEAD) + "".join(_row("td", row) for row in _rows(points))
    parts = [
        f'<div class="charts">{"".join(charts)}</div>',
        f'<div class="card scroll"><table>{body}</table></div>',
    ]
    return page("Engines compared", facts, parts)


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _chart(points: Sequence[Point], title: str, value: Callable[[Point], float | None]) -> str:
    names = list(dict.fromkeys(each.engine for each in points))
    series = [
        Series(
            name,
            [
                (float(each.concurrency), shown)
                for each in points
                if each.engine == name and (shown := value(each)) is not None
            ],
            color=f"series-{index}",
        )
        for index, name in enumerate(names, 1)
    ]
    return card(title, "", chart(series, x="concurrency", y=title))


def _scaled(value_s: float | None) -> float | None:
    return None if value_s is None else 1000 * value_s


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
    print(f"{facts}\n\n{points_table(points)}")
    if options.report:
        options.report.write_text(report(points, facts))
    if options.json:
        options.json.write_text(json.dumps([vars(each) for each in points], indent=1) + "\n")
    return 0
