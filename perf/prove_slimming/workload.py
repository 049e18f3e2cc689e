"""Do all the work in one environment, each piece twice; write a line of JSON for each: its name, and its
digest, its error, or that it varies.

    python3 -m perf.prove_slimming.workload RESULTS.jsonl [--only TEXT] [--device cpu]

The last line lists the shared libraries that were loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch

from perf.prove_slimming import libraries, operators
from perf.prove_slimming.digest import digest

REPEATS = 2
VARIES = "varies"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which PyTorch's determinism needs
    with options.results.open("w", buffering=1) as results:
        for group in (libraries, operators):
            for name, work in group.checks(options.device):
                if options.only in name:
                    _run(name, work, results)
        print(json.dumps({"libraries": _loaded_libraries()}), file=results)
    sys.stdout.flush()
    os._exit(0)  # skips what libraries do when they are unloaded


def _run(name: str, work: Callable[[], object], results: IO[str]) -> None:
    started = time.perf_counter()
    outcomes = {_outcome(work) for _ in range(REPEATS)}
    seconds = round(time.perf_counter() - started, 3)
    line = {"name": name, "outcome": outcomes.pop() if len(outcomes) == 1 else VARIES, "seconds": seconds}
    print(json.dumps(line), file=results)


def _outcome(work: Callable[[], object]) -> str:
    """The digest, as deterministic as PyTorch can, or the error."""
    for warn_only in (False, True):
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        try:
            with torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            ):
                return digest(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
            outcome = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        if not any(hint in outcome for hint in ("determinis", "No available kernel")):
            break
    return outcome


def _loaded_libraries() -> list[str]:
    """Files of the shared libraries in this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in maps if ".so" in line})


if __name__ == "__main__":
    main()
