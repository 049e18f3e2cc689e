"""Measures an engine's way from an HTTP server to READY. After `make setup`:

    .venv/bin/python scripts/measure_cold_start.py --gib 8

An engine.tar on loopback HTTP is fetched, unpacked and verified, in turns with `curl | tar x` on it: once of
few large files, once of many small ones. Then a runner is started on it, and what its log says tells where
each second went. The disk must have room for four times the size.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.cold_start import make_tar, measure_start, measure_transfer, start_table, transfer_table
from bench.machine import machine
from errors.base import CodedError
from errors.prompt import InvalidInput

_SMALL_FILE_BYTES = 64 << 10
_LARGE_FILES = 4


def main(arguments: Sequence[str] | None = None) -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of engine.tar (default %(default)g)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of each; the best counts (default %(default)s)"
    )
    parser.add_argument("--folder", help="where to work (default: the temporary folder)")
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
    size_bytes = int(options.gib * (1 << 30))
    small_files = size_bytes // _SMALL_FILE_BYTES
    transfers = []
    for files, shape in ((_LARGE_FILES, "few large files"), (small_files, "many small files")):
        with tempfile.TemporaryDirectory(prefix="cog-triton-cold-", dir=options.folder) as name:
            folder = Path(name)
            _tell(f"making an engine.tar of {files} files")
            tar = make_tar(folder, size_bytes, files)
            _tell("fetching and unpacking it, in turns with curl and tar")
            transfers.append(measure_transfer(f"{files} files", tar, folder, options.rounds))
            if shape == "few large files":
                _tell("starting a runner on it")
                steps = measure_start(tar, folder)
    print(f"{machine()}\n\n{transfer_table(transfers)}\n\n{start_table(steps)}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
