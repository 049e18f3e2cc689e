"""An engine in processes below the engine server (``runner.engines.engine_child``): one, or one per GPU."""

import itertools
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineStartFailed
from errors.wire import ExitReason
from runner.engines.protocol.adapter import Sink
from runner.engines.protocol.messages import (
    Cached,
    Cancel,
    Failed,
    Finished,
    LoadAdapter,
    LogProbs,
    Order,
    Ready,
    Statistics,
    Submit,
    ToClient,
    Tokens,
    UnloadAdapter,
)
from runner.engines.protocol.wire import FrameReader, FrameSender
from runner.engines.server.ranks import Ranks
from runner.engines.server.start import EngineStart
from runner.supervision.child import how_ended, with_parent

_STOP_GRACE_S = 5.0


class ChildEngine:
    """An engine in a child process, or in one per rank. The processes end with this one.

    It takes orders for adapters if the child's engine does. See ``runner.engines.protocol.adapter``.
    """

    def __init__(self, start: EngineStart, sink: Sink, exit_reason: ExitReason, num_ranks: int = 1) -> None:
        """Start the processes and wait until their engine is loaded. Raises a CodedError."""
        self._start = start
        self._sink = sink
        self._exit_reason = exit_reason
        self._is_closed = False
        self._ranks: Ranks | None = None
        self._statistics = Statistics(active=0, queued=0)
        self._order_numbers = itertools.count(-1, -1)  # Requests have positive ones.
        self._orders: dict[int, Future[None]] = {}
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            files = exit_reason.descriptor, theirs.fileno()
            document = msgspec.structs.replace(start, socket_fd=theirs.fileno()).encode()
            command = [sys.executable, "-m", "runner.engines.engine_child", document.decode()]
            if num_ranks > 1:
                self._ranks = Ranks(command, num_ranks, *files)
                self._process = self._ranks.process
            else:
                command = [*with_parent(os.getpid()), *command]
                self._process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL)
        self._reader = FrameReader(self._connection, list[ToClient])
        self._sender = FrameSender(self._connection, "child-sender")
        match next(self._reader.batches(), None):
            case [Ready() as ready, *_]:
                self.ready = ready
            case _:
                raise self._why_ended(EngineStartFailed)
        threading.Thread(target=self._read, name="child-reader", daemon=True).start()

    def submit(self, request: Submit) -> None:
        self._sender.send(request)

    def cancel(self, request_id: int) -> None:
        self._sender.send(Cancel(request_id))

    def statistics(self) -> Statistics:
        return self._statistics

    def load_adapter(self, order: LoadAdapter) -> dict[str, str]:
        return self._carry_out(order)

    def unload_adapter(self, name: str) -> dict[str, str]:
        return self._carry_out(UnloadAdapter(0, name))

    def _carry_out(self, order: Order) -> dict[str, str]:
        """Have the child carry out the order. Return its adapters then. Raises the child's CodedError."""
        number = next(self._order_numbers)
        done = self._orders[number] = Future()
        self._sender.send(msgspec.structs.replace(order, request_id=number))
        done.result()
        return self.ready.adapters

    def close(self) -> None:
        """End the child: close its socket, and kill it after a grace period."""
        self._is_closed = True
        with suppress(OSError):  # It closed its end first.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._exit_code()

    def _read(self) -> None:
        try:
            for messages in self._reader.batches():
                for message in messages:
                    self._receive(message)
        except OSError:
            pass  # It ended before it had read everything.
        except Exception as exc:  # noqa: BLE001 - a malformed message: nothing more can be read
            self._sink.broken(exc)
            return
        if not self._is_closed:
            self._sink.broken(self._why_ended(EngineCrashed))

    def _receive(self, message: ToClient) -> None:
        match message:
            case Tokens(new=new):
                self._sink.tokens(new)
            case LogProbs(new=values):
                self._sink.log_probs(values)
            case Cached(new=counts):
                self._sink.cached(counts)
            case Ready():
                self.ready = message
            case Finished(request_id=request_id) if request_id in self._orders:
                self._orders.pop(request_id).set_result(None)
            case Failed(request_id=request_id, error=error) if request_id in self._orders:
                self._orders.pop(request_id).set_exception(error.restore())
            case Finished(request_id=request_id, reason=reason):
                self._sink.finished(request_id, reason, message.sequences, message.embedding)
            case Failed(request_id=request_id, error=error):
                self._sink.failed(request_id, error.restore())
            case Statistics():
                self._statistics = message

    def _why_ended(self, otherwise: type[EngineCrashed | EngineStartFailed]) -> CodedError:
        """Return the error that the processes left, else how they ended."""
        code = self._exit_code()
        if (cause := self._exit_reason.read()) is not None:
            return cause
        if self._ranks is not None:
            return self._ranks.error(code)
        reason = f"its process ended ({how_ended(code)}); its log is above"
        return otherwise(engine_kind=self._start.engine_kind, reason=reason)

    def _exit_code(self) -> int:
        """Wait for the end of the child, whose socket is closed. It is killed if that takes too long."""
        try:
            return self._process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
