"""Put the same load on several engines, each in the whole stack, and compare them.

    python -m perf compare-engines hf=engines/hf vllm=engines/vllm@.venv-vllm/bin/python

Each engine is NAME=PLACE[@PYTHON]: an engine folder or engine.tar of any kind, and the Python of its engine
environment (default: that of `make setup`). All should hold the same model. Prints time to first token,
inter-token latency and throughput by concurrency; --report writes an HTML page with charts.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from engine.cache.store import open_engine
from engine.machine.description import machine
from engine.machine.python import engine_python
from errors.requests import InvalidInput
from perf.bench.measure import cog_target, workload
from perf.load.chart import COLORS, Chart, Point, page
from perf.load.clients import run
from perf.load.plan import Plan
from perf.load.summary import summarize
from perf.options import Options
from perf.servers import whole_stack
from perf.table import table

_HEAD = ("engine", "kind", "concurrency", "tokens/s", "first token, ms", "inter-token, ms", "failed")
_CHARTS = {
    "throughput, tokens/s": "tokens_per_second",
    "time to first token, ms": "first_token_ms",
    "inter-token latency, ms": "inter_token_ms",
}
_WARM_UP_S = 1.0


class Result(NamedTuple):
    """One engine at one concurrency. Times are medians, None where nothing was completed."""

    engine: str
    kind: str
    concurrency: int
    tokens_per_second: float
    first_token_ms: float | None
    inter_token_ms: float | None
    failed: int

    @property
    def cells(self) -> list[str]:
        times = (
            "-" if each is None else f"{each:.1f}" for each in (self.first_token_ms, self.inter_token_ms)
        )
        speed = f"{self.tokens_per_second:,.0f}"
        return [self.engine, self.kind, str(self.concurrency), speed, *times, str(self.failed)]


def parse_contenders(texts: Sequence[str]) -> dict[str, tuple[Path, str]]:
    """Place and Python of each engine by its name. Raises InvalidInput."""
    contenders: dict[str, tuple[Path, str]] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        place, _, python = rest.partition("@")
        if not (name and place):
            raise InvalidInput(name="engine", expected="NAME=PLACE or NAME=PLACE@PYTHON", value=text)
        if name in contenders:
            raise InvalidInput(name="engine", expected="a name of its own for each", value=name)
        contenders[name] = (Path(place), python or engine_python())
    if len(contenders) > COLORS:
        raise InvalidInput(name="engines", expected=f"at most {COLORS}", value=len(contenders))
    return contenders


def measure(
    name: str, place: Path, python: str, options: argparse.Namespace, folder: Path
) -> Iterator[Result]:
    """Start the stack on the engine, warm it up, load it with each concurrency in turn."""
    engine = open_engine(place, folder / "cache")
    work = workload(options.n_input_tokens, options.n_output_tokens)
    with whole_stack(folder, {"ENGINE_DIR": str(engine.path)}, engine_python=python) as stack:
        target = cog_target(stack, work, is_streaming=True)
        run(Plan("concurrency", max(options.concurrency), _WARM_UP_S), target)
        for concurrency in options.concurrency:
            found = summarize(run(Plan("concurrency", concurrency, options.duration), target))
            times_ms = (each and each.p50 * 1000 for each in (found.first_token_s, found.inter_token_s))
            figures = (concurrency, found.tokens_per_second, *times_ms, found.failed)
            result = Result(name, engine.manifest.engine_kind, *figures)
            print(*result.cells, sep=" | ", file=sys.stderr, flush=True)
            yield result


def _chart(results: Sequence[Result], title: str, field: str) -> Chart:
    lines: dict[str, list[Point]] = {}
    for each in results:
        if (value := getattr(each, field)) is not None:
            lines.setdefault(each.engine, []).append((each.concurrency, value))
    return Chart(title, "concurrency", title, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("compare-engines", __doc__)
    parser.add_argument("engines", nargs="+", metavar="NAME=PLACE[@PYTHON]")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], help="streams at once")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds of each load")
    parser.add_argument("--n_input_tokens", type=int, default=100, help="of each request")
    parser.add_argument("--n_output_tokens", type=int, default=100, help="of each request")
    parser.add_argument("--report", type=Path, metavar="HTML", help="write a page with charts")
    options = parser.parse_args(arguments)
    results: list[Result] = []
    contenders = parse_contenders(options.engines)
    # Wrong options are refused before anything starts.
    for concurrency in options.concurrency:
        Plan("concurrency", concurrency, options.duration)
    path = options.report
    if path and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InvalidInput(name="file", expected="one in a folder that exists", value=path)
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (place, python)) in enumerate(contenders.items()):
            results += measure(name, place, python, options, Path(folder) / str(number))
    facts = f"{machine()}; {options.n_input_tokens} tokens in, {options.n_output_tokens} out, by Cog's events"
    rows = [each.cells for each in sorted(results, key=lambda each: each.concurrency)]
    text = f"{facts}\n\n{table(_HEAD, rows)}"
    print(text)
    if path:
        charts = [_chart(results, title, field) for title, field in _CHARTS.items()]
        path.write_text(page("Engines compared", text, charts))
    return 0
