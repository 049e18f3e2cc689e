"""Measures an engine's way from an HTTP server to READY. After `make setup`:

    .venv/bin/python perf/measure_cold_start.py --gib 8

An engine.tar on loopback HTTP is fetched, unpacked and verified, in turns with `curl | tar x` on it: once of
few large files, once of many small ones. Then a runner is started on it, and what its log says tells where
each second went (--mib-per-s: over a network of that speed; --engine-python: on a transformers engine).
The disk must have room for four times the size.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from errors.coded_error import CodedError
from errors.requests import InvalidInput
from perf.bench.cold_start import (
    Transfer,
    make_tar,
    measure_start,
    measure_transfer,
    start_table,
    transfer_table,
)
from perf.bench.machine import machine
from perf.bench.servers import run_program

_SMALL_FILE_BYTES = 64 << 10
_LARGE_FILES = 4
_MOST_SMALL_FILES = 1 << 16
"""More than the weights of any model, and within what a tar may have."""


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of engine.tar (default %(default)g)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each; the best counts (default %(default)s)"
    )
    parser.add_argument("--folder", help="where to work (default: the temporary folder)")
    parser.add_argument(
        "--shape", choices=("large", "small", "both"), default="both", help="of the files in it"
    )
    parser.add_argument("--start-only", action="store_true", help="start the runner, compare nothing")
    parser.add_argument(
        "--mib-per-s", type=float, default=math.inf, help="of the network that the runner is started over"
    )
    parser.add_argument(
        "--engine-python", help="start on a transformers engine with this Python (default: a paced one)"
    )
    options = parser.parse_args(arguments)
    try:
        _measure(options)
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


def _measure(options: argparse.Namespace) -> None:
    if not _SMALL_FILE_BYTES <= options.gib * (1 << 30) < math.inf:
        raise InvalidInput(name="gib", expected="a size above 0", value=options.gib)
    if options.rounds < 1:
        raise InvalidInput(name="rounds", expected="at least 1", value=options.rounds)
    if not options.mib_per_s > 0:
        raise InvalidInput(name="mib-per-s", expected="above 0", value=options.mib_per_s)
    size_bytes = int(options.gib * (1 << 30))
    shapes = {"large": _LARGE_FILES, "small": min(size_bytes // _SMALL_FILE_BYTES, _MOST_SMALL_FILES)}
    transfers: list[Transfer] = []
    tables: list[str] = []
    for shape, files in shapes.items():
        if options.shape in (shape, "both"):
            with tempfile.TemporaryDirectory(prefix="cog-triton-cold-", dir=options.folder) as name:
                _measure_shape(options, Path(name), size_bytes, files, transfers, tables)
    print("\n\n".join(filter(None, [machine(), transfer_table(transfers) if transfers else "", *tables])))


def _measure_shape(
    options: argparse.Namespace,
    folder: Path,
    size_bytes: int,
    files: int,
    transfers: list[Transfer],
    tables: list[str],
) -> None:
    _tell(f"making an engine.tar of {files} files")
    tar = make_tar(folder, size_bytes, files, "transformers" if options.engine_python else "paced")
    if not options.start_only:
        _tell("fetching and unpacking it, in turns with curl and tar")
        transfers.append(measure_transfer(f"{files} files", tar, folder, options.rounds))
    if files == _LARGE_FILES:
        _tell("starting a runner on it")
        python = str(Path(options.engine_python or sys.executable).absolute())
        tables.append(start_table(measure_start(tar, folder, options.mib_per_s * (1 << 20), python)))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_program(main)
