"""``python -m perf COMMAND``: measurements, long runs and proofs."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from errors.coded_error import CodedError

_INTERRUPTED = 130


class Command(NamedTuple):
    """``module`` has ``main(arguments)``, which returns the exit status; it is imported when it is run."""

    module: str
    help: str


COMMANDS = {
    "bench": Command("perf.bench.budget", "measure the budget table"),
    "layers": Command("perf.bench.layers", "put the same load on each layer of the stack"),
    "load": Command("perf.load.command", "load test of one server"),
    "compare-engines": Command("perf.compare_engines", "put the same load on several engines"),
    "soak": Command("perf.soak", "many requests with known answers; memory, threads, files"),
    "flood": Command("perf.flood", "ten times as many clients as places, idle and stalled connections"),
    "faults": Command("perf.faults", "kill and stop each process under load"),
    "fuzz": Command("perf.fuzz", "fuzz one target, guided by coverage"),
    "prove-gpu": Command("perf.prove_gpu.command", "exact streams and speed on a GPU"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: python -m perf COMMAND [OPTIONS]\n")
        print("\n".join(f"  {each:<16} {command.help}" for each, command in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"python -m perf: {name!r} is not one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    # SIGTERM is as Ctrl-C: the servers that a command started are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(importlib.import_module(COMMANDS[name].module).main(rest))
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
