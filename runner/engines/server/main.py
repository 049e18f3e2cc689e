"""The engine server: a process of its own that holds one engine and serves it to any number of clients.

``runner.engines.server.supervisor`` starts it with the engine environment's Python, so that the engine's
Python version, numpy and MPI world are its own. It ends when its engine ends, and its parent starts another.
"""

import importlib
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from queue import Empty, SimpleQueue

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.wire import ExitReason
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.arrival import await_arrival
from runner.engines.protocol.options import integer, parse_options
from runner.engines.server.child import ChildEngine
from runner.engines.server.clients import Clients
from runner.engines.server.loading import keep_bytecode_of, load_engine, start_errors
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Requests
from runner.engines.server.start import EngineStart
from runner.observability.logs import set_up_logging
from runner.supervision.child import die_with_parent

_INTERVAL = "stats_check_period_ms"
_HEARTBEAT_S = 1.0
"""Longest interval of statistics, by which clients know that this process is alive."""

log = logging.getLogger("cog_triton.engine")


def load(start: EngineStart, sink: Sink, exit_reason: ExitReason) -> EngineAdapter:
    """Load the engine, in this process or in others."""
    kind = find_kind(start.engine_kind)
    keep_bytecode_of(start)
    if kind.runs_in_child:
        return ChildEngine(start, sink, exit_reason)
    if kind.has_ranks:
        await_arrival(start.arrival)
        num_ranks: int = importlib.import_module(kind.adapter).num_ranks(start.engine_dir)
        if num_ranks > 1:
            return ChildEngine(start, sink, exit_reason, num_ranks)
    return load_engine(start, sink)


def serve(start: EngineStart, exit_reason: ExitReason) -> int:
    """Load the engine, then serve its clients until SIGTERM. Returns an exit code."""
    listener = socket.socket(fileno=start.socket_fd)
    os.register_at_fork(after_in_child=listener.close)
    try:
        interval_s = _statistics_interval_s(start)
        metrics = EngineMetrics(start.engine_kind, start.restarts, start.metrics_dir)
        os.register_at_fork(after_in_child=metrics.close)
        requests = Requests(start.engine_kind, metrics, exit_reason)
        with start_errors(start.engine_kind):
            engine = load(start, requests, exit_reason)
    except CodedError as exc:
        is_whole = isinstance(exc.__cause__, ModuleNotFoundError)  # The sentence names the package.
        log.error("%s", exc, exc_info=None if is_whole else exc.__cause__)
        exit_reason.write(exc)
        return 1
    log.info("engine ready: %s", engine.ready)
    # NOTE: no Event: its ``set`` waits for a lock, which the thread that the signal interrupts may hold.
    orders: SimpleQueue[int] = SimpleQueue()
    signal.signal(signal.SIGTERM, lambda number, _: orders.put(number))
    requests.serve(engine)
    clients = Clients(listener, requests, engine)
    while not _is_stopped(orders, interval_s):
        requests.check_progress(start.hang_timeout_s)
        try:
            clients.send_all(requests.statistics())
        except Exception as exc:  # noqa: BLE001 - of the engine's library
            requests.broken(exc)
    engine.close()
    requests.close()
    return 0


def _is_stopped(orders: SimpleQueue[int], timeout_s: float) -> bool:
    """Wait for a signal. Return True if this process has to stop."""
    with suppress(Empty):
        return bool(orders.get(timeout=timeout_s))
    return False


def _statistics_interval_s(start: EngineStart) -> float:
    """Read the interval of statistics. Raises E1006."""
    interval_ms = parse_options(start.options, {_INTERVAL: integer(1)}).get(_INTERVAL)
    return _HEARTBEAT_S if interval_ms is None else min(interval_ms / 1000, _HEARTBEAT_S)


def main() -> int:
    start = EngineStart.decode(sys.stdin.buffer.read())
    set_up_logging()
    die_with_parent()  # An engine that hangs in native code does not react to SIGTERM.
    # A terminal's Ctrl-C reaches all processes; our parent ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.register_at_fork(after_in_child=die_with_parent)
    return serve(start, ExitReason(start.exit_reason_fd))


if __name__ == "__mp_main__":  # A process that an engine's library spawns.
    die_with_parent()
    # NOTE: it has this process's flags of the start, without what ``keep_bytecode`` changed.
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))

if __name__ == "__main__":
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
