"""Compare what serving layers cost around one vLLM engine: ours, and vLLM's own servers.

    make vllm
    .venv/bin/python -m perf peers
    .venv/bin/python -m perf peers --servers api-1 cog-events --workloads 256-paced

`make vllm` makes the environment with vLLM, on a machine without a GPU, too. Without --engine, all servers
run vLLM's engine core over an executor that stands in for the GPU. With --engine, they run a vLLM engine on
this machine's GPU, which sets its own pace: a workload "-paced" is then the same as the one without.

NVIDIA's vLLM backend of Triton is one of the servers for those who have its source (Triton 26.07 was released
with vLLM 0.24.0):

    git clone https://github.com/triton-inference-server/vllm_backend
    .venv/bin/python -m perf peers --servers vllm-rust triton-vllm api-1 --vllm-backend vllm_backend

All servers are resident. In each round each workload is put on each of them, in random order, by one client
process; ratios are taken within a round. Before that, all get the same prompts, and their texts are compared.
`taskset -c 0-3 python -m perf peers ...` lets servers and client use four processors only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from engine.machine.description import machine
from errors.requests import InvalidInput
from perf.options import Options
from perf.peers.comparison import Comparison, check_lengths, with_capacity
from perf.peers.engine import Engine, given_engine, standin_engine
from perf.peers.measure import Row
from perf.peers.report import report
from perf.peers.servers import DEFAULT, NAMES, check_names, resident
from perf.peers.triton_vllm import REPOSITORY, TRITON_VLLM, check_backend
from perf.peers.workloads import WORKLOADS

_DEFAULT_WORKLOADS = ("32", "256", "32-paced", "256-paced", "starts", "prefix")
_PYTHON = ".venv-vllm/bin/python"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    check_names(options.servers)
    backend = check_backend(options.vllm_backend) if TRITON_VLLM in options.servers else None
    if options.rounds < 1:
        raise InvalidInput(name="rounds", expected="at least 1", value=options.rounds)
    if options.result and not options.result.absolute().parent.is_dir():
        raise InvalidInput(name="result", expected="a file in a folder that exists", value=options.result)
    started_s = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="cog-triton-peers-") as name:
        folder = options.work or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        engine = _engine(options, folder.absolute())
        check_lengths(options.workloads, engine)
        with resident(options.servers, engine, folder.absolute(), backend) as endpoints:
            comparison = Comparison(endpoints, engine, options.seed)
            equal = comparison.compare_texts()
            print(f"texts: {equal}", file=sys.stderr, flush=True)
            for number in range(options.rounds):
                for row in comparison.round(number, with_capacity(options.workloads)):
                    rows.append(row)
                    _tell(row)
                    if options.result:
                        options.result.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    kind = f"engine {options.engine}" if options.engine else "vLLM's engine core over a stand-in executor"
    print(f"\n{machine()}; {kind}; {options.rounds} rounds in {time.monotonic() - started_s:.0f} s\n")
    print(f"Texts equal to those of {options.servers[0]}, of {max(equal.values())}: {equal}\n")
    print(report(rows, options.servers[0]))
    return any(row.not_served for row in rows) or len(set(equal.values())) > 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Options("peers", __doc__)
    servers = "; ".join(f"{name}: {what}" for name, what in NAMES.items())
    parser.add_argument("--engine-python", default=_PYTHON, help="the Python of an environment with vLLM")
    parser.add_argument("--engine", metavar="PLACE", help="an engine.tar or engine folder of kind vllm")
    servers_help = f"the first one is the reference of ratios. {servers}"
    backend_help = f"a checkout of {REPOSITORY}"
    parser.add_argument("--vllm-backend", type=Path, metavar="FOLDER", help=backend_help)
    parser.add_argument("--servers", nargs="+", default=list(DEFAULT), metavar="NAME", help=servers_help)
    parser.add_argument(
        "--workloads",
        nargs="+",
        default=list(_DEFAULT_WORKLOADS),
        choices=WORKLOADS,
        metavar="NAME",
        help=f"of {', '.join(WORKLOADS)}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each workload is measured")
    parser.add_argument("--seed", default="0", help="of the prompts")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="for engine, cache and logs; it is kept")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_args(arguments)


def _engine(options: argparse.Namespace, folder: Path) -> Engine:
    python = str(options.engine_python)
    if not os.access(python, os.X_OK):
        raise InvalidInput(
            name="engine-python",
            expected="the Python of an environment with vLLM (see `make vllm`)",
            value=python,
        )
    return given_engine(options.engine, python, folder) if options.engine else standin_engine(python, folder)


def _tell(row: Row) -> None:
    first_ms = f"{row.first_token_ms[0]:.0f} ms" if row.first_token_ms else "-"
    speed = f"{row.tokens_per_second:,.0f} tokens/s, first token {first_ms}"
    line = f"{row.round} {row.workload} {row.server}: {speed}"
    print(line, *row.errors, *row.warnings, sep="; ", file=sys.stderr, flush=True)
