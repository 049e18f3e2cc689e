"""A child of the engine server that holds one engine and speaks messages over a socket.

For engines whose loop needs Python's lock, and for those with a process per GPU (``ranks``). It ends when the
socket closes: no engine outlives the engine server.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed, EngineStartFailed
from errors.wire import ExitReason, WireError
from runner.engines.protocol.adapter import Engine
from runner.engines.protocol.arrival import await_arrival
from runner.engines.protocol.messages import (
    Failed,
    Finished,
    FinishReason,
    FromClient,
    LogProbs,
    Statistics,
    Submit,
    TokenLogProb,
    Tokens,
)
from runner.engines.protocol.wire import FrameReader, FrameSender
from runner.engines.worker.ranks import Ranks
from runner.observability.logs import set_up_logging
from runner.supervision.parent_death import die_with_parent
from runner.supervision.tuning import uncollected

_STATISTICS_INTERVAL_S = 0.5
_BROKEN_EXIT_CODE = 70

log = logging.getLogger("cog_triton.engine")


class SocketSink:
    """Turns what an engine reports into frames. See ``runner.engines.protocol.adapter.Sink``."""

    def __init__(self, sender: FrameSender, engine_kind: str, exit_reason: ExitReason) -> None:
        self._sender = sender
        self._engine_kind = engine_kind
        self._exit_reason = exit_reason

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        self._sender.send(Tokens(list(new)))

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        self._sender.send(LogProbs(list(new)))

    def finished(
        self, request_id: int, reason: FinishReason, sequences: list[list[int]] | None = None
    ) -> None:
        self._sender.send(Finished(request_id, reason, sequences))

    def failed(self, request_id: int, error: Exception) -> None:
        if not isinstance(error, CodedError):
            fields = {"engine_request_ids": [request_id]}
            log.error("request %d failed", request_id, exc_info=error, extra={"fields": fields})
            error = EngineFailed(engine_kind=self._engine_kind, reason=_reason(error))
        self._sender.send(Failed(request_id, WireError.of(error)))

    def broken(self, error: Exception) -> None:
        cause = error
        if not isinstance(error, CodedError):
            error = EngineCrashed(engine_kind=self._engine_kind, reason=_reason(error))
        log.critical("%s", error, exc_info=cause)
        self._exit_reason.write(error)
        self._sender.close()
        # NOTE: not sys.exit: the engine's own threads may hang in native code for ever.
        os._exit(_BROKEN_EXIT_CODE)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def serve(
    connection: socket.socket,
    engine_kind: str,
    engine_dir: Path,
    options: Mapping[str, str],
    exit_reason: ExitReason,
) -> int:
    """Load the engine, then work until the connection closes. Returns an exit code."""
    sender = FrameSender(connection, "engine-sender")
    try:
        sink = SocketSink(sender, engine_kind, exit_reason)
        with uncollected():
            adapter = importlib.import_module(find_kind(engine_kind).adapter)
            engine: Engine = adapter.load(engine_dir, sink, options)
    except Exception as exc:
        error = exc
        if not isinstance(error, CodedError):
            error = EngineStartFailed(engine_kind=engine_kind, reason=_reason(exc))
        log.error("%s", error, exc_info=exc)
        exit_reason.write(error)
        return 1
    sender.send(engine.ready)
    threading.Thread(target=_report_statistics, args=(engine, sender), name="statistics", daemon=True).start()
    decoder: msgspec.msgpack.Decoder[list[FromClient]] = msgspec.msgpack.Decoder(list[FromClient])
    for messages in FrameReader(connection, decoder).batches():
        for message in messages:
            if isinstance(message, Submit):
                engine.submit(message)
            else:
                engine.cancel(message.request_id)
    engine.close()
    return 0


def _report_statistics(engine: Engine, sender: FrameSender) -> None:
    last: Statistics | None = None
    pause = threading.Event()
    while not pause.wait(_STATISTICS_INTERVAL_S):
        now = engine.statistics()
        if now != last:
            sender.send(now)
            last = now


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.engines.worker.main", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True, help="inherited socket to the engine server")
    parser.add_argument("--exit-reason-fd", type=int, required=True, help="inherited errors.wire.ExitReason")
    parser.add_argument("--kind", required=True, help="engine kind")
    parser.add_argument("--engine-dir", type=Path, required=True, help="unpacked engine")
    parser.add_argument("--arrival", type=Path, required=True, help="see runner.engines.protocol.arrival")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="engine option")
    options = parser.parse_args(arguments)
    set_up_logging()
    die_with_parent()  # An engine that hangs does not see its socket close.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.socket_fd)
    # An engine that forks: its children are no ends of this connection, and do not outlive us.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=die_with_parent)
    pairs = dict(option.split("=", 1) for option in options.option)
    exit_reason = ExitReason(options.exit_reason_fd)
    kind = find_kind(options.kind)
    if kind.preload is not None:
        with contextlib.suppress(Exception):  # A failure shows when the engine is loaded.
            importlib.import_module(kind.preload)
    await_arrival(options.arrival)
    if kind.has_ranks:
        num_ranks = importlib.import_module(kind.adapter).num_ranks(options.engine_dir)
        return Ranks(kind.name, options.engine_dir, pairs, num_ranks).run(connection, exit_reason)
    return serve(connection, kind.name, options.engine_dir, pairs, exit_reason)


if __name__ == "__main__":
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
