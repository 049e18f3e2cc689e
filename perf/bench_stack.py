"""Measures every layer of the stack with the same load in one run, with the paced engine. After `make setup`:

.venv/bin/python perf/bench_stack.py
.venv/bin/python perf/bench_stack.py --streams 256 --n_output_tokens 512 --batches 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from errors.coded_error import CodedError
from perf.bench.layers import Load, layers_table, measure_layers
from perf.bench.machine import machine
from perf.bench.servers import run_program


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    default = Load()
    parser.add_argument("--streams", type=int, default=default.streams, help="at once (default %(default)s)")
    parser.add_argument(
        "--n_output_tokens", type=int, default=default.output_tokens, help="(default %(default)s)"
    )
    parser.add_argument(
        "--n_input_tokens", type=int, default=default.input_tokens, help="(default %(default)s)"
    )
    parser.add_argument(
        "--tps",
        type=float,
        default=default.tokens_per_second,
        help="of the engine, per stream (default %(default)g)",
    )
    parser.add_argument(
        "--batches", type=int, default=default.batches, help="per layer (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    load = Load(
        options.streams, options.n_output_tokens, options.n_input_tokens, options.tps, options.batches
    )
    try:
        measurements = measure_layers(load, lambda line: print(line, file=sys.stderr, flush=True))
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 2
    told = f"{load.streams} streams of {load.output_tokens} tokens at {load.tokens_per_second:g}/s"
    print(f"{machine()}; {told}\n")
    print(layers_table(measurements, load.tokens_per_second))
    return 0


if __name__ == "__main__":
    run_program(main)
