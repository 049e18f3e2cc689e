"""One rank of an engine on several GPUs, started by mpirun: see ``runner.engines.worker.ranks``."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.wire import ExitReason
from runner.engines.worker.main import serve
from runner.supervision.parent_death import die_with_parent

_ORPHANED_EXIT_CODE = 71
_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"

log = logging.getLogger("cog_triton.engine")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.engines.worker.rank", description=__doc__)
    parser.add_argument("--call", required=True, help="abstract Unix socket of the launcher")
    parser.add_argument("--kind", required=True, help="engine kind")
    parser.add_argument("--engine-dir", type=Path, required=True, help="unpacked engine")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="engine option")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = int(os.environ[_RANK_VARIABLE])
    options = dict(option.split("=", 1) for option in arguments.option)
    call = socket.socket(socket.AF_UNIX)
    call.connect(f"\0{arguments.call}")
    call.sendall(str(rank).encode())
    _, descriptors, _, _ = socket.recv_fds(call, 16, 2)
    exit_reason = ExitReason(descriptors[0])
    threading.Thread(target=_end_with_launcher, args=(call,), name="launcher", daemon=True).start()
    if rank == 0:
        connection = socket.socket(fileno=descriptors[1])
        return serve(connection, arguments.kind, arguments.engine_dir, options, exit_reason)
    return _follow(arguments.kind, arguments.engine_dir, options, exit_reason)


def _end_with_launcher(call: socket.socket) -> None:
    """NOTE: mpirun, not the launcher, is our parent, and may have ended before ``die_with_parent``."""
    call.recv(1)
    os._exit(_ORPHANED_EXIT_CODE)


def _follow(engine_kind: str, engine_dir: Path, options: Mapping[str, str], exit_reason: ExitReason) -> int:
    try:
        importlib.import_module(find_kind(engine_kind).adapter).follow(engine_dir, options)
    except CodedError as exc:
        log.error("%s", exc)
        exit_reason.write(exc)
        return 1
    return 0


if __name__ == "__main__":
    # An orderly end: MPI has something to do at exit, and mpirun calls anything else a failure.
    sys.exit(main())
