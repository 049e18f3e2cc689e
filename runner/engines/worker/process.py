"""Supervises the engine worker: starts it, reads its messages, and restarts it when it ends or hangs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from typing import Protocol

import msgspec

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineStartFailed
from errors.wire import ExitReason
from runner.engines.protocol.engine_ready import await_arrival
from runner.engines.protocol.messages import FromWorker, Ready, StartFailed, Statistics, ToWorker
from runner.engines.protocol.wire import FrameReader, frame
from runner.engines.worker.command import EngineCommand
from runner.engines.worker.hang_detection import HangDetector
from runner.supervision.backoff import Backoff

_STOP_GRACE_S = 5.0
_END_S = 2.0
"""A worker's socket closes just before its process ends."""

_WATCH_POLL_S = 0.1

ENGINE_LOST = "engine worker lost: "
"""Begins the log line of a worker that ended or could not be restarted. The runner reads these lines."""

log = logging.getLogger("cog_triton.slot")


class Listener(Protocol):
    """Receives the worker's messages. Called from the reader thread only."""

    def received(self, messages: list[FromWorker]) -> None: ...

    def lost(self, error: CodedError) -> None:
        """The worker ended; every request it had is lost. It is being restarted."""

    def is_waiting(self) -> bool:
        """Whether any request waits for the worker. Called from any thread."""


class EngineProcess:
    """One worker at a time, from ``start`` to ``stop``."""

    def __init__(self, command: EngineCommand, listener: Listener) -> None:
        self._command = command
        self._listener = listener
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_reason = ExitReason()
        self._supervisor: threading.Thread | None = None
        self._stopping = threading.Event()
        self._hangs = HangDetector(command.hang_timeout_s)
        self._hang_reason: str | None = None
        self.restarts = 0

    @property
    def is_ready(self) -> bool:
        """True while a loaded engine can be sent to."""
        return self._connection is not None

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> Ready:
        """Start the worker and wait until its engine is loaded. Raises EngineStartFailed."""
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()
        ready, reader = self._launch()
        self._supervisor = threading.Thread(
            target=self._supervise, args=(reader,), name="engine-reader", daemon=True
        )
        self._supervisor.start()
        return ready

    def send(self, message: ToWorker) -> None:
        """Send to the worker. Raises EngineCrashed while there is none."""
        data = frame(self._encoder, message)
        with self._lock:
            try:
                if self._connection is None:
                    raise self._crashed("it is not ready yet", was_ready=False)
                self._connection.sendall(data)
            except OSError as exc:
                raise self._crashed(str(exc)) from exc

    def stop(self) -> None:
        """End the worker: close its socket, and kill it after a grace period."""
        self._stopping.set()
        self._close_connection()
        process = self._process
        if process is None:
            return
        if not _ends_within(process, _STOP_GRACE_S):
            _kill_group(process)
            process.wait()
        if self._supervisor is not None:
            self._supervisor.join(_STOP_GRACE_S)  # It may be about to start another worker.

    def _launch(self) -> tuple[Ready, FrameReader[FromWorker]]:
        self._exit_reason.clear()
        self._hang_reason = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    self._command.arguments(theirs.fileno(), self._exit_reason.descriptor),
                    env=self._command.environment(),
                    pass_fds=(theirs.fileno(), self._exit_reason.descriptor),
                    stdin=subprocess.DEVNULL,
                )
            except OSError as exc:
                ours.close()
                raise self._start_failed(f"its Python {self._command.python!r} can't be run: {exc}") from exc
        if self._stopping.is_set():
            _kill_group(self._process)
        decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
        reader = FrameReader(ours, decoder)
        try:
            ready = self._await_ready(ours, reader)
        except CodedError:
            ours.close()
            _kill_group(self._process)
            self._process.wait()
            raise
        self._hangs.reset()  # What it started while it loaded is to be watched from now on.
        with self._lock:
            self._connection = ours
        return ready, reader

    def _await_ready(self, connection: socket.socket, reader: FrameReader[FromWorker]) -> Ready:
        assert self._process is not None
        if self._command.arrival is not None:
            await_arrival(self._command.arrival)
            self._command = self._command.without_arrival()
        connection.settimeout(self._command.start_timeout_s)
        messages = next(reader.batches(), None)
        connection.settimeout(None)
        match messages:
            case [Ready() as ready, *_]:
                return ready
            case [StartFailed(error=error)]:
                raise error.restore()
            case None if self._process.poll() is None and not _ends_within(self._process, _END_S):
                raise self._start_failed(f"it was not ready after {self._command.start_timeout_s:g} s")
        if (cause := self._exit_reason.read()) is not None:
            raise cause
        raise self._start_failed(f"its process ended ({_exit_reason(self._process)}); its log is above")

    def _start_failed(self, reason: str) -> EngineStartFailed:
        return EngineStartFailed(engine_kind=self._command.engine_kind, reason=reason)

    def _crashed(self, reason: str, *, was_ready: bool = True) -> EngineCrashed:
        return EngineCrashed(engine_kind=self._command.engine_kind, reason=reason, was_ready=was_ready)

    def _supervise(self, reader: FrameReader[FromWorker]) -> None:
        """Read from the worker until it ends, then start another one, unless this object is closed."""
        while True:
            for messages in reader.batches():
                if any(not isinstance(message, Statistics) for message in messages):
                    self._hangs.progress()
                self._listener.received(messages)
            self._close_connection()
            assert self._process is not None
            if self._stopping.is_set():
                # NOTE: the worker is killed when the thread that started it ends, and that may be this one.
                _ends_within(self._process, _STOP_GRACE_S)
                return
            _ends_within(self._process, _END_S)
            _kill_group(self._process)
            error = self._why_lost(self._process)
            log.error("%s%s", ENGINE_LOST, error)
            self._listener.lost(error)
            replacement = self._restart()
            if replacement is None:
                return
            reader = replacement

    def _why_lost(self, process: subprocess.Popen[bytes]) -> CodedError:
        """That it hung, else the exit reason that the worker left, else how its process ended."""
        reason = self._hang_reason or _exit_reason(process)
        crash = self._crashed(reason)
        return crash if self._hang_reason else self._exit_reason.read() or crash

    def _restart(self) -> FrameReader[FromWorker] | None:
        backoff = Backoff()
        while not self._stopping.is_set():
            started_s = time.monotonic()
            self.restarts += 1
            try:
                _, reader = self._launch()
            except CodedError as exc:
                wait_s = backoff.next_s()
                log.error("%s%s; next try in %g s", ENGINE_LOST, exc, wait_s)
            else:
                log.warning("engine worker restarted in %.1f s", time.monotonic() - started_s)
                return reader
            self._stopping.wait(wait_s)
        return None

    def _watch(self) -> None:
        """End a worker that hangs; the supervisor then does the rest."""
        while not self._stopping.wait(_WATCH_POLL_S):
            process = self._process
            if process is None or process.poll() is not None:
                self._hangs.reset()
                continue
            if not self.is_ready or not self._listener.is_waiting():
                self._hangs.progress()
            if (reason := self._hangs.check(process.pid)) is not None:
                self._hang_reason = reason
                _kill_group(process)
                self._hangs.kill_descendants()
                process.wait()

    def _close_connection(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # NOTE: shutdown wakes threads that block in recv or in sendall, which holds the lock; close does not.
        with suppress(OSError):  # The worker closed its end first, or another thread ours.
            connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            connection.close()
            if self._connection is connection:
                self._connection = None


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """True if the process ended by then."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the worker and the processes that it started, such as ranks. It leads a group, once it runs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()


def _exit_reason(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
