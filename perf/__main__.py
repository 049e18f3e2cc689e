"""``python -m perf COMMAND``: measurements."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Sequence

from engine.machine.old_python import leave_old_python
from errors.coded_error import CodedError

_INTERRUPTED = 130


COMMANDS = {
    "bench": ("perf.bench.budget", "measure the budget table, or with --layers each layer of the stack"),
    "peers": ("perf.peers.command", "put the same load on our servers, on vLLM's, and on several engines"),
    "fleet": ("perf.fleet", "servers behind a router: one is killed, one is added, one is drained"),
    "load": ("perf.load.command", "load test of one server"),
}
"""Module and help. The module is imported when it is run; its ``main(arguments)`` returns the exit status."""


def main(arguments: Sequence[str] | None = None) -> int:
    name, *rest = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    leave_old_python("perf", [name, *rest])
    if name in ("-h", "--help"):
        print("usage: python -m perf COMMAND [OPTIONS]\n")
        print("\n".join(f"  {each:<16} {what}" for each, (_, what) in COMMANDS.items()))
        return 0
    if name not in COMMANDS:
        print(f"python -m perf: {name!r} is not one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return exit_status(lambda: importlib.import_module(COMMANDS[name][0]).main(rest))


def exit_status(run: Callable[[], int]) -> int:
    """Run a command; return its exit status. Print a coded error, and stop its servers at SIGTERM, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(run())
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
