"""The engine process of a node that is not the head: it holds ranks, and has no clients.

``runner.stack.follower.supervisor`` starts it with the engine environment's Python. It sends a byte over its
socket every second once its ranks are loaded, and ends when the head is lost.
"""

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.wire import ExitReason
from runner.engines.server.loading import keep_bytecode_of, start_errors
from runner.engines.server.start import EngineStart
from runner.observability.logs import set_up_logging
from runner.supervision.child import die_with_parent

_BEAT_S = 1.0
_BROKEN_EXIT_CODE = 70

log = logging.getLogger("cog_triton.engine")


def serve(start: EngineStart, exit_reason: ExitReason) -> None:
    """Hold the ranks until the engine ends, which is an error. Raises a CodedError."""
    connection = socket.socket(fileno=start.socket_fd)

    def beat() -> None:
        while True:
            connection.sendall(b".")
            time.sleep(_BEAT_S)

    def broken(error: CodedError) -> None:
        log.critical("%s", error)
        exit_reason.write(error)
        # NOTE: not sys.exit: the engine's own threads may hang in native code for ever.
        os._exit(_BROKEN_EXIT_CODE)

    module = find_kind(start.engine_kind).follower
    assert module is not None, "the runner refuses NODES for other kinds"
    with start_errors(start.engine_kind):
        keep_bytecode_of(start)
        on_ready = threading.Thread(target=beat, name="heartbeat", daemon=True).start
        importlib.import_module(module).join(start.engine_dir, start.options, on_ready, broken)


def main() -> int:
    start = EngineStart.decode(sys.stdin.buffer.read())
    set_up_logging()
    die_with_parent()
    # A terminal's Ctrl-C reaches all processes; our parent ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_reason = ExitReason(start.exit_reason_fd)
    try:
        serve(start, exit_reason)
    except CodedError as exc:
        log.error("%s", exc, exc_info=exc.__cause__)
        exit_reason.write(exc)
    return _BROKEN_EXIT_CODE


if __name__ == "__mp_main__":  # A rank, which the engine's library spawns.
    die_with_parent()

if __name__ == "__main__":
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
