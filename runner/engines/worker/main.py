"""The engine worker: a process of its own that holds one engine and speaks messages over a socket.

Started by ``runner.engines.worker.process`` with the engine environment's Python, so that the engine's
Python version, numpy and MPI world are its own. It ends when the socket closes: no engine outlives
the slot it serves.
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
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from engine.kinds import find_kind
from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed, EngineStartFailed
from errors.wire import ExitReason, WireError
from runner.engines.protocol.adapter import Engine
from runner.engines.protocol.engine_ready import PARAMETER, await_arrival
from runner.engines.protocol.messages import (
    Cancel,
    Failed,
    Finished,
    FinishReason,
    LogProbs,
    StartFailed,
    Statistics,
    Submit,
    TokenLogProb,
    Tokens,
    ToWorker,
)
from runner.engines.protocol.wire import FrameReader, FrameSender
from runner.engines.worker.bytecode import keep_bytecode
from runner.engines.worker.parent_death import die_with_parent
from runner.engines.worker.ranks import Ranks
from runner.observability.logs import set_up_logging
from runner.supervision.tuning import uncollected

_STATISTICS_INTERVAL_MS = 1000
_BROKEN_EXIT_CODE = 70

log = logging.getLogger("cog_triton.engine")


class SocketSink:
    """Turns what an engine reports into frames. See ``runner.engines.protocol.adapter.Sink``."""

    def __init__(self, sender: FrameSender, engine_kind: str, exit_reason: ExitReason) -> None:
        self._sender = sender
        self._engine_kind = engine_kind
        self._exit_reason = exit_reason
        self._log_prob_counts: dict[int, int] = {}
        """By request that wants log probabilities: how many came for its next tokens."""

    def expect(self, request: Submit) -> None:
        """Called before the engine gets the request."""
        if request.wants_log_probs:
            self._log_prob_counts[request.request_id] = 0

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        new = list(new)
        if self._log_prob_counts:
            new = [each for each in new if self._has_log_probs(*each)]
        self._sender.send(Tokens(new))

    def log_probs(self, new: Iterable[tuple[int, list[TokenLogProb]]]) -> None:
        new = list(new)
        for request_id, values in new:
            if request_id in self._log_prob_counts:
                self._log_prob_counts[request_id] += len(values)
        self._sender.send(LogProbs(new))

    def finished(
        self, request_id: int, reason: FinishReason, sequences: list[list[int]] | None = None
    ) -> None:
        self._log_prob_counts.pop(request_id, None)
        self._sender.send(Finished(request_id, reason, sequences))

    def failed(self, request_id: int, error: Exception) -> None:
        self._log_prob_counts.pop(request_id, None)
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

    def _has_log_probs(self, request_id: int, tokens: list[int]) -> bool:
        """Whether each token has a value, if the request wants values; if not, the request fails."""
        count = self._log_prob_counts.get(request_id)
        if count is None:
            return True
        self._log_prob_counts[request_id] = 0
        if count != len(tokens):
            reason = f"it sent {count} log probabilities for {len(tokens)} tokens"
            self.failed(request_id, EngineFailed(engine_kind=self._engine_kind, reason=reason))
        return count == len(tokens)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def serve(
    connection: socket.socket,
    engine_kind: str,
    engine_dir: Path,
    options: dict[str, str],
    exit_reason: ExitReason,
) -> int:
    """Load the engine, acknowledge, then work until the slot closes the connection. Returns an exit code."""
    sender = FrameSender(connection, "engine-sender")
    try:
        sink = SocketSink(sender, engine_kind, exit_reason)
        with uncollected():
            adapter = importlib.import_module(find_kind(engine_kind).adapter)
            engine: Engine = adapter.load(engine_dir, sink, options)
    except Exception as exc:  # noqa: BLE001 - any failure is sent to the slot
        return _start_failed(sender, engine_kind, exc)
    sender.send(engine.ready)
    interval_s = float(options.get("stats_check_period_ms") or _STATISTICS_INTERVAL_MS) / 1000
    arguments = (engine, sender, interval_s)
    threading.Thread(target=_report_statistics, args=arguments, name="statistics", daemon=True).start()
    decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
    for messages in FrameReader(connection, decoder).batches():
        for message in messages:
            _handle(engine, sink, message)
    engine.close()
    return 0


def _start_failed(sender: FrameSender, engine_kind: str, cause: Exception) -> int:
    """Send the error to the slot. Returns the exit code."""
    error = (
        cause
        if isinstance(cause, CodedError)
        else EngineStartFailed(engine_kind=engine_kind, reason=_reason(cause))
    )
    log.error("%s", error, exc_info=cause)
    sender.send(StartFailed(WireError.of(error)))
    sender.close()
    return 1


def _serve_ranks(ranks: Ranks, connection: socket.socket, exit_reason: ExitReason) -> int:
    """As ``serve``, by as many processes as the engine has ranks: rank 0 gets the connection."""
    ranks.start(connection, exit_reason)
    error = ranks.wait()
    if error is None:
        return 0
    log.critical("%s", error)
    exit_reason.write(error)
    return _BROKEN_EXIT_CODE


def _handle(engine: Engine, sink: SocketSink, message: ToWorker) -> None:
    match message:
        case Submit():
            sink.expect(message)
            engine.submit(message)
        case Cancel():
            engine.cancel(message.request_id)


def _report_statistics(engine: Engine, sender: FrameSender, interval_s: float) -> None:
    last: Statistics | None = None
    pause = threading.Event()
    while not pause.wait(interval_s):
        now = engine.statistics()
        if now != last:
            sender.send(now)
            last = now


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.engines.worker.main", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True, help="inherited stream socket to the slot")
    parser.add_argument("--exit-reason-fd", type=int, required=True, help="inherited errors.wire.ExitReason")
    parser.add_argument("--kind", required=True, help="engine kind")
    parser.add_argument("--engine-dir", type=Path, required=True, help="unpacked engine")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="engine option")
    options = parser.parse_args(arguments)
    set_up_logging()
    die_with_parent()  # An engine that hangs does not see its socket close.
    os.setpgid(0, 0)  # With what the engine starts, so that it can be killed whole.
    # A terminal's Ctrl-C reaches the whole group; the supervisor ends us in order, by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.socket_fd)
    # An engine that forks: its children are no ends of this connection, and do not outlive us.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=die_with_parent)
    pairs = dict(option.split("=", 1) for option in options.option)
    exit_reason = ExitReason(options.exit_reason_fd)
    kind = find_kind(options.kind)
    if cache_dir := pairs.get("engine_cache_dir"):
        folder = Path(cache_dir) / "bytecode"
        if keep_bytecode(kind.libraries, folder):
            log.info("libraries came without bytecode: it is kept in %s", folder)
    if arrival := pairs.pop(PARAMETER, None):
        if kind.preload is not None:
            with contextlib.suppress(Exception):  # A failure shows when the engine is loaded.
                importlib.import_module(kind.preload)
        await_arrival(Path(arrival))
    try:
        adapter = importlib.import_module(kind.adapter) if kind.has_ranks else None
        if adapter is not None and (world_size := adapter.num_ranks(options.engine_dir)) > 1:
            ranks = Ranks(kind.name, options.engine_dir, pairs, world_size)
            return _serve_ranks(ranks, connection, exit_reason)
    except CodedError as exc:
        return _start_failed(FrameSender(connection, "launcher-sender"), kind.name, exc)
    return serve(connection, kind.name, options.engine_dir, pairs, exit_reason)


if __name__ == "__main__":
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
