"""Graceful shutdown of Cog's server: drains at SIGTERM, rejects new clients, and ends with its worker.

At SIGTERM coglet stops to listen, answers the open requests and ends, but does not wait for asynchronous
predictions, which have no connection. So

* a request of ours that is never completed keeps coglet running until the worker has drained;
* a descriptor of our own for coglet's listening socket stays open, and new clients get 503 with
  ``Connection: close``;
* when a worker that was ready ends by itself, or is killed because it hangs (``WorkerWatch``), the server
  ends too, with exit code 70: coglet would stay, and only the body of its health check would say so.

Signals reach us by Python's wakeup descriptor: coglet's own handler calls the one that was there before.
"""

import asyncio
import atexit
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from runner.cog_server.worker_watch import UNRECOVERABLE_EXIT_CODE, VARIABLE, WorkerWatch, send_line
from runner.supervision.child import Log
from runner.supervision.client_sockets import hold_bursts, set_options
from runner.supervision.unavailable import reject

_POLL_S = 0.5
_LISTENER_POLL_S = 0.05
_RETRY_S = 1.0
_ANSWER_S = 0.5
"""Time for coglet to answer, and to send its webhooks, after the last prediction."""
_COGLET_END_S = 5.0
"""Limit of the wait for coglet, which itself waits for clients that don't read."""
_WORKER_END_S = 20.0
"""Time beyond the grace period for the worker to end Triton."""
_KILL_S = 3.0
_HOLDING_REQUEST = (
    b"POST /predictions HTTP/1.1\r\nHost: hold\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
)


def start_graceful_shutdown(port: int, log: Log) -> None:
    """Start the thread that waits for signals. Call in the main thread, before coglet starts on ``port``."""
    ours, workers = socket.socketpair()
    workers.set_inheritable(True)
    os.environ[VARIABLE] = str(workers.fileno())
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        # The thread reads it from the wakeup descriptor, and coglet hears it.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    shutdown = GracefulShutdown(port, ours, workers, signals, log)
    threading.Thread(target=shutdown.run, name="graceful-shutdown", daemon=True).start()


class GracefulShutdown:
    """The shutdown, from coglet's start to the end of the process."""

    def __init__(
        self, port: int, link: socket.socket, workers_end: socket.socket, signals: int, log: Log
    ) -> None:
        """Initialize. ``link``: to the Cog worker, which inherits ``workers_end``; ``signals``: to read."""
        self._port = port
        self._link = link
        self._workers_end = workers_end
        self._signals = signals
        self._log = log
        self._listener: socket.socket | None = None
        self._is_listening: Callable[[], bool]
        self._hold: socket.socket | None = None
        self._watch: WorkerWatch | None = None
        self._is_ready = False
        self._is_worker_gone = False
        self._grace_s = 0.0
        self._received = b""

    def run(self) -> None:
        """Shut down. An error in one step is logged and loses no other step: what runs is drained."""
        while not self._succeeds(self._wait_for_signal):
            time.sleep(_RETRY_S)
        self._succeeds(self._start_rejecting)
        self._succeeds(self._drain_worker)
        self._succeeds(self._wait_for_coglet)
        os._exit(0)

    def _succeeds(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the other steps matter more
            self._log(f"error: graceful shutdown: {type(exc).__name__}: {exc}")
            return False
        return True

    def _wait_for_signal(self) -> None:
        """Wait until a signal came or coglet stopped listening. Called again after an error."""
        if self._listener is None:
            while (found := find_listener(self._port)) is None:
                time.sleep(_LISTENER_POLL_S)
            self._listener, self._is_listening = found
            set_options(self._listener)
            hold_bursts(self._listener)
        if self._hold is None:
            self._hold = _open_request(self._listener)
        while not self._next_signal():
            if not self._is_listening():
                self._next_signal()  # coglet may have reacted to the first one before we read it.
                return
            self._receive(_POLL_S)
            if self._is_worker_gone and self._is_ready:
                time.sleep(2 * _ANSWER_S)
                os._exit(UNRECOVERABLE_EXIT_CODE)

    def _start_rejecting(self) -> None:
        assert self._listener is not None
        rejecting = partial(self._succeeds, partial(asyncio.run, reject(self._listener)))
        threading.Thread(target=rejecting, name="reject", daemon=True).start()

    def _drain_worker(self) -> None:
        if not self._is_ready:
            return
        send_line(self._link, "stop")
        deadline_s = time.monotonic() + self._grace_s + _WORKER_END_S
        while "stopped" not in self._receive(_POLL_S) and not self._is_worker_gone:
            self._check_second_signal()
            if time.monotonic() > deadline_s:
                self._end_at_once(signal.SIGKILL)
        time.sleep(_ANSWER_S)

    def _wait_for_coglet(self) -> None:
        """Wait for coglet to end the process, which a client that does not read may delay."""
        if self._hold is not None:
            self._hold.close()
        deadline_s = time.monotonic() + _COGLET_END_S
        while time.monotonic() < deadline_s:
            self._check_second_signal()
            time.sleep(_POLL_S)

    def _check_second_signal(self) -> None:
        if number := self._next_signal():
            self._end_at_once(number)

    def _end_at_once(self, number: int) -> None:
        # NOTE: coglet may end the process as soon as its worker is gone, before we do.
        atexit.register(os._exit, 128 + number)
        send_line(self._link, "kill")
        deadline_s = time.monotonic() + _KILL_S
        while not self._is_worker_gone and time.monotonic() < deadline_s:
            self._receive(_POLL_S)
        os._exit(128 + number)

    def _next_signal(self) -> int:
        """Return the signal that came, one at a time; 0 if none did."""
        if not select.select([self._signals], [], [], 0)[0]:
            return 0
        number = os.read(self._signals, 1)[0]
        return number if number in (signal.SIGTERM, signal.SIGINT) else 0

    def _receive(self, timeout_s: float) -> list[str]:
        """Return lines from the worker; note that it has started, is ready, or is gone, and watch it."""
        if self._is_worker_gone:
            time.sleep(timeout_s)
            return []
        if self._watch is not None:
            self._watch.check()
        link = self._link.fileno()
        if link not in select.select([link, self._signals], [], [], timeout_s)[0]:
            return []
        try:
            data = self._link.recv(1024)
        except OSError:
            data = b""
        self._is_worker_gone = not data
        *whole, self._received = (self._received + data).split(b"\n")
        lines = [line.decode() for line in whole]
        for line in lines:
            self._note(line)
        return lines

    def _note(self, line: str) -> None:
        match line.split():
            case ["hello", pid]:
                self._workers_end.close()  # The worker has its own: now the link closes when it ends.
                self._watch = WorkerWatch(int(pid), partial(send_line, self._link), self._log)
            case ["ready", grace_s] if self._watch is not None:
                self._is_ready, self._grace_s = True, float(grace_s)
                self._watch.ready()
            case ["pong"] if self._watch is not None:
                self._watch.pong()


def _open_request(listener: socket.socket) -> socket.socket:
    """Open a connection on which coglet waits for the rest of a request."""
    host, port = listener.getsockname()[:2]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    connection = socket.create_connection((address, port))
    connection.sendall(_HOLDING_REQUEST)
    return connection


def find_listener(port: int) -> tuple[socket.socket, Callable[[], bool]] | None:
    """Find a descriptor of coglet's socket on ``port`` among our files, and whether coglet still listens."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # Another thread may close it meanwhile.
            if (place := path.readlink()).name.startswith("socket:"):
                candidate = socket.socket(fileno=os.dup(int(path.name)))
                if _listens(candidate, port):
                    return candidate, partial(_is_at, path, place)
                candidate.close()
    return None


def _is_at(path: Path, place: Path) -> bool:
    """Return True while a descriptor stands for that socket."""
    with suppress(OSError):
        return path.readlink() == place
    return False


def _listens(candidate: socket.socket, port: int) -> bool:
    return (
        candidate.family in (socket.AF_INET, socket.AF_INET6)
        and bool(candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        and candidate.getsockname()[1] == port
    )
