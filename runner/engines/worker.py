"""The engine worker: a process of its own that holds one engine and speaks messages over a socket.

Started by ``runner.engines.process`` with the engine environment's Python, so that the engine's
Python version, numpy and MPI world are its own. It ends when the socket closes: no engine outlives
the slot it serves.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from errors.base import CodedError
from errors.triton_system import EngineCrashed, EngineFailed, EngineStartFailed
from runner.engines.adapter import Engine
from runner.engines.messages import (
    Cancel,
    Failed,
    Finished,
    FinishReason,
    LogProbs,
    StartFailed,
    Statistics,
    Submit,
    Tokens,
    ToWorker,
)
from runner.engines.registry import factory
from runner.engines.wire import FrameReader, FrameSender

_STATISTICS_INTERVAL_S = 1.0
_BROKEN_EXIT_CODE = 70
_PR_SET_PDEATHSIG = 1

log = logging.getLogger("cog_triton.engine")


class SocketSink:
    """Turns what an engine reports into frames. See ``runner.engines.adapter.Sink``."""

    def __init__(self, sender: FrameSender, engine_kind: str) -> None:
        self._sender = sender
        self._engine_kind = engine_kind

    def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
        self._sender.send(Tokens(list(new)))

    def log_probs(self, new: Iterable[tuple[int, list[float]]]) -> None:
        self._sender.send(LogProbs(list(new)))

    def finished(self, request_id: int, reason: FinishReason) -> None:
        self._sender.send(Finished(request_id, reason))

    def failed(self, request_id: int, error: Exception) -> None:
        if not isinstance(error, CodedError):
            log.error("request %d failed", request_id, exc_info=error)
            error = EngineFailed(engine_kind=self._engine_kind, reason=_reason(error))
        self._sender.send(Failed(request_id, str(error)))

    def broken(self, error: Exception) -> None:
        log.critical(
            "%s", EngineCrashed(engine_kind=self._engine_kind, reason=_reason(error)), exc_info=error
        )
        self._sender.close()
        # NOTE: not sys.exit: the engine's own threads may hang in native code for ever.
        os._exit(_BROKEN_EXIT_CODE)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def serve(connection: socket.socket, engine_kind: str, engine_dir: Path, options: dict[str, str]) -> int:
    """Load the engine, acknowledge, then work until the slot closes the connection. Returns an exit code."""
    sender = FrameSender(connection, "engine-sender")
    # What is imported and loaded stays: looking through it again and again takes a tenth of an import's time.
    gc.disable()
    try:
        engine = factory(engine_kind)(engine_dir, SocketSink(sender, engine_kind), options)
    except Exception as exc:
        error = (
            exc
            if isinstance(exc, CodedError)
            else EngineStartFailed(engine_kind=engine_kind, reason=_reason(exc))
        )
        log.error("%s", error, exc_info=exc)
        sender.send(StartFailed(str(error)))
        sender.close()
        return 1
    gc.freeze()
    gc.enable()
    sender.send(engine.ready)
    threading.Thread(target=_report_statistics, args=(engine, sender), name="statistics", daemon=True).start()
    decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
    for messages in FrameReader(connection, decoder).batches():
        for message in messages:
            _handle(engine, message)
    engine.close()
    return 0


def _handle(engine: Engine, message: ToWorker) -> None:
    match message:
        case Submit():
            engine.submit(message)
        case Cancel():
            engine.cancel(message.request_id)


def _report_statistics(engine: Engine, sender: FrameSender) -> None:
    last: Statistics | None = None
    pause = threading.Event()
    while not pause.wait(_STATISTICS_INTERVAL_S):
        now = engine.statistics()
        if now != last:
            sender.send(now)
            last = now


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runner.engines.worker", description=__doc__)
    parser.add_argument("--socket-fd", type=int, required=True, help="inherited stream socket to the slot")
    parser.add_argument("--kind", required=True, help="engine kind")
    parser.add_argument("--engine-dir", type=Path, required=True, help="unpacked engine")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="engine option")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    _end_with_parent()
    os.setpgid(0, 0)  # With what the engine starts, so that it can be killed whole.
    # A terminal's Ctrl-C reaches the whole group; the supervisor ends us in order, by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.socket_fd)
    # An engine that forks: its children are no ends of this connection, and do not outlive us.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=_end_with_parent)
    pairs = dict(option.split("=", 1) for option in options.option)
    return serve(connection, options.kind, options.engine_dir, pairs)


def _end_with_parent() -> None:
    """Have Linux kill us when the slot is gone: an engine that hangs does not see its socket close."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    # NOTE: os._exit, because native threads of an engine may keep the interpreter from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
