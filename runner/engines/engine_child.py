"""A process of an engine that does not run in the engine server itself, which starts it (``server.child``).

It is used if the engine's loop needs Python's lock, or if the engine has a process (rank) per GPU. The
arguments are its ``EngineStart`` and, for a rank, the Unix socket of ``server.ranks``. It ends when its
socket closes: no engine outlives the engine server.
"""

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed, as_coded
from errors.wire import ExitReason, WireError
from runner.engines.protocol import messages
from runner.engines.protocol.adapter import EngineAdapter
from runner.engines.protocol.wire import FrameReader, FrameSender
from runner.engines.server.loading import load_engine, start_errors
from runner.engines.server.orders import Orders
from runner.engines.server.start import EngineStart
from runner.observability.logs import set_up_logging
from runner.supervision.child import die_with_parent

_STATISTICS_INTERVAL_S = 0.5
_BROKEN_EXIT_CODE = 70
_ORPHANED_EXIT_CODE = 71
_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"

log = logging.getLogger("cog_triton.engine")


@dataclass(frozen=True)
class SocketSink:
    """Turns what an engine reports into frames. See ``runner.engines.protocol.adapter.Sink``."""

    _sender: FrameSender
    _engine_kind: str
    _exit_reason: ExitReason

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        self._sender.send(messages.Tokens(list(new)))

    def log_probs(self, new: Iterable[tuple[int, list[messages.TokenLogProb]]]) -> None:
        self._sender.send(messages.LogProbs(list(new)))

    def cached(self, new: Iterable[tuple[int, ...]]) -> None:
        self._sender.send(messages.Cached(list(new)))

    def finished(
        self,
        request_id: int,
        reason: messages.FinishReason,
        sequences: list[list[int]] | None = None,
        embedding: bytes | None = None,
        drafted: tuple[int, int] | None = None,
    ) -> None:
        self._sender.send(messages.Finished(request_id, reason, sequences, embedding, None, drafted))

    def failed(self, request_id: int, error: Exception) -> None:
        coded = as_coded(error, EngineFailed, self._engine_kind)
        if coded is not error:
            fields = {"engine_request_ids": [request_id]}
            log.error("request %d failed", request_id, exc_info=error, extra={"fields": fields})
        self._sender.send(messages.Failed(request_id, WireError.of(coded)))

    def broken(self, error: Exception) -> None:
        coded = as_coded(error, EngineCrashed, self._engine_kind)
        log.critical("%s", coded, exc_info=error)
        self._exit_reason.write(coded)
        self._sender.close()
        # NOTE: not sys.exit: the engine's own threads may hang in native code for ever.
        os._exit(_BROKEN_EXIT_CODE)


def serve(start: EngineStart, exit_reason: ExitReason) -> None:
    """Load the engine, then work until the socket closes. Raises a CodedError."""
    connection = socket.socket(fileno=start.socket_fd)
    # An engine that forks: its children are no ends of this connection, and do not outlive us.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=die_with_parent)
    sender = FrameSender(connection, "engine-sender")
    with start_errors(start.engine_kind):
        sink = SocketSink(sender, start.engine_kind, exit_reason)
        engine = load_engine(start, sink)
    sender.send(engine.ready)
    orders = Orders(engine, lambda: sender.send(engine.ready))
    reporting = engine, sender, sink
    threading.Thread(target=_report_statistics, args=reporting, name="statistics", daemon=True).start()
    for batch in FrameReader(connection, list[messages.FromClient]).batches():
        for message in batch:
            try:
                if isinstance(message, messages.Submit):
                    engine.submit(message)
                elif isinstance(message, messages.Cancel):
                    engine.cancel(message.request_id)
                else:
                    orders.give(message, sender.send)
            except Exception as exc:  # noqa: BLE001 - whatever a library raises, the others go on
                sink.failed(message.request_id, exc)
    engine.close()


def _report_statistics(engine: EngineAdapter, sender: FrameSender, sink: SocketSink) -> None:
    last: messages.Statistics | None = None
    try:
        while True:
            now = engine.statistics()
            if now != last:
                sender.send(now)
                last = now
            time.sleep(_STATISTICS_INTERVAL_S)
    except Exception as exc:  # noqa: BLE001 - of the engine's library
        sink.broken(exc)


def _call_server(place: str, rank: int) -> list[int]:
    """Have this rank end with the engine server. Return the files that it gives to the rank.

    NOTE: mpirun, not the engine server, is our parent, and may have ended before ``die_with_parent``.
    """
    call = socket.socket(socket.AF_UNIX)
    call.connect(f"\0{place}")
    call.sendall(str(rank).encode())
    _, descriptors, _, _ = socket.recv_fds(call, 16, 2)

    def end_with_server() -> None:
        call.recv(1)
        os._exit(_ORPHANED_EXIT_CODE)

    threading.Thread(target=end_with_server, name="engine-server", daemon=True).start()
    return descriptors


def main() -> int:
    document, *place = sys.argv[1:]
    start = EngineStart.decode(document.encode())
    set_up_logging("text" if place else None)  # The engine server adds the rank to each line.
    die_with_parent()  # An engine that hangs does not see its socket close.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank = 0
    if place:
        rank = int(os.environ[_RANK_VARIABLE])
        descriptors = dict(zip(("exit_reason_fd", "socket_fd"), _call_server(place[0], rank), strict=False))
        start = msgspec.structs.replace(start, **descriptors)
    exit_reason = ExitReason(start.exit_reason_fd)
    try:
        if rank == 0:
            serve(start, exit_reason)
        else:
            importlib.import_module(find_kind(start.engine_kind).adapter).follow(
                start.engine_dir, start.options
            )
    except CodedError as exc:
        log.error("%s", exc, exc_info=exc.__cause__)
        exit_reason.write(exc)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    if _RANK_VARIABLE in os.environ:
        sys.exit(code)  # In order: MPI has something to do at exit, and mpirun calls anything else a failure.
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
