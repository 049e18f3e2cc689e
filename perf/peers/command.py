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
Times are p50/p90/p99; with fewer than 100 values, the p99 is between the two largest. An engine that is made
has a context as long as the workloads need.
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
from perf.peers.servers import NAMES, can_serve, resident, server_name
from perf.peers.workloads import WORKLOADS, Workload, parse_workloads
from perf.routers import ROUTERS, find_program

_SERVERS = ("vllm-rust", "vllm-1", "slot", "api-1", "cog-events", "cog-json")
_WORKLOADS = ("32", "256", "32-paced", "256-paced", "starts", "prefix")
_VLLM_PYTHON = ".venv-vllm/bin/python"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    workloads = parse_workloads(options.workloads, None)
    _check(options, workloads)
    rows: list[Row] = []
    end_s = time.monotonic() + options.limit_s
    with tempfile.TemporaryDirectory(prefix="cog-triton-peers-") as name:
        folder = (options.work or Path(name)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        engines = _engines(options, workloads, folder)
        for engine in engines.values():
            parse_workloads(options.workloads, engine.arguments.get("max_model_len"))
        able = {name for name in options.servers for engine in engines.values() if can_serve(name, engine)}
        if not able:
            raise InvalidInput(name="servers", expected="able to serve the engine", value=options.servers)
        _check_streams(able, workloads)
        with resident(options.servers, engines, folder) as endpoints:
            rounds = Rounds(endpoints, workloads, options.seed)
            rounds.warm_up()
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
    workloads_help = (
        f"some of {', '.join(WORKLOADS)}, or STREAMSxINPUTxOUTPUT, in tokens, four times a stream"
    )
    add("--workloads", nargs="+", default=list(_WORKLOADS), metavar="NAME", help=workloads_help)
    add("--rounds", type=int, default=3, help="number of times that each workload is measured")
    limit_help = "seconds after which no other measurement begins, servers' starts included"
    add("--limit-s", type=float, default=math.inf, metavar="SECONDS", help=limit_help)
    arguments_help = "vLLM's, in JSON; with load_format dummy no text is known, and no weights are read"
    add("--arguments", type=_json, default={}, metavar="OBJECT", help=arguments_help)
    add("--seed", default="0", help="any text: the same one gives the same prompts")
    add("--work", type=Path, metavar="FOLDER", help="for engines, cache and logs; it is kept")
    add("--result", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_args(arguments)


def _check(options: argparse.Namespace, workloads: Mapping[str, Workload]) -> None:
    """Raise InvalidInput for what argparse does not check, and MissingRequirement for a missing router."""
    result, work = options.result, options.work
    rules = (
        ("rounds", options.rounds >= 1, "at least 1"),
        ("limit-s", options.limit_s >= 0, "at least 0"),
        ("result", not result or result.absolute().parent.is_dir(), "a file in a folder that exists"),
        ("result", not result or not result.is_dir(), "a file"),
        ("work", not work or work.is_dir() or not work.exists(), "a folder"),
        ("arguments", isinstance(options.arguments, dict), "a JSON object"),
        ("arguments", not (options.arguments and options.engine), "absent with --engine, which has its own"),
        ("model", not (options.model and options.engine), "absent with --engine"),
    )
    for name, is_right, expected in rules:
        if not is_right:
            value = getattr(options, name.replace("-", "_"))
            raise InvalidInput(name=name, expected=expected, value=str(value))
    _check_streams(set(options.servers), workloads)
    for name in set(options.servers) & set(ROUTERS):
        find_program(ROUTERS[name][0])


def _check_streams(servers: set[str], workloads: Mapping[str, Workload]) -> None:
    if servers == {"cog-events"} and any(each.is_whole for each in workloads.values()):
        expected = "of streams for cog-events alone"
        raise InvalidInput(name="workloads", expected=expected, value=list(workloads))


def _engines(
    options: argparse.Namespace, workloads: Mapping[str, Workload], folder: Path
) -> dict[str, Engine]:
    """Make or open the engines, by name. Raises InvalidInput."""
    found = {}
    for text in options.engine:
        name, _, rest = text.rpartition("=")
        place, _, python = rest.partition("@")
        if not place or "/" in name or name in found:
            raise InvalidInput(name="engine", expected="NAME=PLACE[@PYTHON], each name once", value=text)
        python = str(Path(python).absolute()) if python else engine_python()
        found[name] = given_engine(place, python, folder / name)
    if found:
        return found
    python = str(Path(options.engine_python).absolute())
    if not os.access(python, os.X_OK):
        expected = "the Python of an environment with vLLM (see `make vllm`)"
        raise InvalidInput(name="engine-python", expected=expected, value=python)
    if options.model:
        made = known_engine(options.model, python, folder, list(workloads.values()), **options.arguments)
    else:
        # The executor has no positions, so that the model's own limit means nothing.
        context = max(1024, *(each.most_tokens for each in workloads.values()))
        limits = {"max_model_len": context, "hf_overrides": {"max_position_embeddings": context}}
        made = standin_engine(python, folder, **(limits | options.arguments))
    return {"": made}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON") from exc
