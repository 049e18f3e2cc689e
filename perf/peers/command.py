"""Put the same load on our servers and on vLLM's, or on several engines, and compare what they cost.

    .venv/bin/python -m perf peers
    .venv/bin/python -m perf peers --model 8b --servers vllm-rust api-1 cog-events --workloads 256 starts
    .venv/bin/python -m perf peers --engine hf=engines/hf --engine trt=engines/trt@/opt/trt/bin/python \\
        --servers cog-events --workloads 16x100x100

Without --engine and --model, all servers run vLLM's engine core over an executor that stands in for the GPU.
`make vllm` makes the environment with vLLM, with or without a GPU. --model makes a model of a real shape with
random weights, whose every token is known, for this machine's GPU. --engine takes engines of any kind. A real
engine sets its own pace: a workload "-paced" is then the same as the one without.

All servers are resident. In each round each workload is put on each of them, in random order, by one client
process. Ratios are taken within a round. Where the texts are known, each answer is compared with its own.
`taskset -c 0-3` before the command lets servers and client use four processors only. Exit status 1 if a
request failed.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from engine.machine.description import machine
from engine.machine.python import engine_python
from errors.requests import InvalidInput
from perf.options import Options
from perf.peers.engine import Engine, given_engine, known_engine, standin_engine
from perf.peers.measure import Rounds, Row
from perf.peers.report import report
from perf.peers.servers import NAMES, resident, server_name
from perf.peers.workloads import WORKLOADS, Workload, parse_workloads

_SERVERS = ("vllm-rust", "vllm-1", "slot", "api-1", "cog-events", "cog-json")
_WORKLOADS = ("32", "256", "32-paced", "256-paced", "starts", "prefix")
_VLLM_PYTHON = ".venv-vllm/bin/python"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.rounds < 1:
        raise InvalidInput(name="rounds", expected="at least 1", value=options.rounds)
    if options.result and not options.result.absolute().parent.is_dir():
        raise InvalidInput(name="result", expected="a file in a folder that exists", value=options.result)
    if not isinstance(options.arguments, dict) or (options.arguments and not options.model):
        raise InvalidInput(name="arguments", expected="a JSON object, with --model", value=options.arguments)
    workloads = parse_workloads(options.workloads, None)
    rows: list[Row] = []
    end_s = time.monotonic() + options.limit_s
    with tempfile.TemporaryDirectory(prefix="cog-triton-peers-") as name:
        folder = (options.work or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        engines = _engines(options, workloads, folder)
        for engine in engines.values():
            parse_workloads(options.workloads, engine.arguments.get("max_model_len"))
        with resident(options.servers, engines, folder) as endpoints:
            rounds = Rounds(endpoints, workloads, options.seed)
            measured = (row for number in range(options.rounds) for row in rounds.round(number))
            for row in measured:
                rows.append(row)
                speed = f"{row.summary.tokens_per_second:,.0f} tokens/s"
                errors = [*list(row.summary.errors)[:3], *row.summary.warnings]
                told = (row.round, row.workload, row.server, speed, *errors)
                print(*told, sep="; ", file=sys.stderr, flush=True)
                if options.result:
                    options.result.write_text(json.dumps([asdict(each) for each in rows], indent=1))
                if time.monotonic() > end_s:
                    break
            kinds = ", ".join(each.kind for each in engines.values())
            print(f"\n{machine()}; {kinds}; {rows[-1].round + 1} rounds begun")
            print(f"\n{report(rows, next(iter(endpoints)))}", flush=True)
    return 1 if any(row.not_served for row in rows) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Options("peers", __doc__)
    add = parser.add_argument
    engine_help = "a given engine of any kind, and the Python of its environment; several may be compared"
    add("--engine", action="append", default=[], metavar="[NAME=]PLACE[@PYTHON]", help=engine_help)
    add("--model", choices=("1b", "8b", "tiny"), help="make a vLLM engine of a known model of this shape")
    add("--engine-python", default=_VLLM_PYTHON, help="of an environment with vLLM, without --engine")
    servers = "; ".join(f"{name}: {what}" for name, what in NAMES.items())
    servers_help = f"the first one is the reference of ratios. {servers}"
    add("--servers", nargs="+", type=server_name, default=list(_SERVERS), metavar="NAME", help=servers_help)
    workloads_help = f"some of {', '.join(WORKLOADS)}, or STREAMSxINPUTxOUTPUT"
    add("--workloads", nargs="+", default=list(_WORKLOADS), metavar="NAME", help=workloads_help)
    add("--rounds", type=int, default=3, help="how often each workload is measured")
    limit_help = "end after the first measurement that ends later than this, servers' starts included"
    add("--limit-s", type=float, default=math.inf, metavar="SECONDS", help=limit_help)
    arguments_help = "vLLM's, for --model; with load_format dummy no text is known, and no weights are read"
    add("--arguments", type=json.loads, default={}, metavar="OBJECT", help=arguments_help)
    add("--seed", default="0", help="of the prompts")
    add("--work", type=Path, metavar="FOLDER", help="for engines, cache and logs; it is kept")
    add("--result", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_args(arguments)


def _engines(
    options: argparse.Namespace, workloads: Mapping[str, Workload], folder: Path
) -> dict[str, Engine]:
    """Make or open the engines, by name. Raises InvalidInput."""
    found = {}
    for text in options.engine:
        name, _, rest = text.rpartition("=")
        place, _, python = rest.partition("@")
        if not place or name in found:
            raise InvalidInput(name="engine", expected="NAME=PLACE[@PYTHON], each name once", value=text)
        found[name] = given_engine(place, python or engine_python(), folder / name)
    if found:
        return found
    python = str(options.engine_python)
    if not os.access(python, os.X_OK):
        expected = "the Python of an environment with vLLM (see `make vllm`)"
        raise InvalidInput(name="engine-python", expected=expected, value=python)
    if options.model:
        return {
            "": known_engine(options.model, python, folder, list(workloads.values()), **options.arguments)
        }
    return {"": standin_engine(python, folder)}
