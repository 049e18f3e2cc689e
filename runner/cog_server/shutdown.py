"""The door of Cog's server: how it stops, whom it turns away then, and that it never stays behind alone.

coglet (read in its source, seen with Cog 0.23.1) stops listening at SIGTERM, lets connections end what they
asked for, and then goes, also from asynchronous predictions, which have no connection. So

* a request of ours that is never sent to its end holds coglet until the worker says that all is done;
* we keep coglet's listening socket and go on where it stops: with 503 and ``Connection: close``;
* when a worker that was ready ends by itself, so do we, with an error: coglet would stay, and say so to
  nobody but who reads the body of its health check.

Signals reach us by Python's wakeup descriptor: coglet's own handler calls the one that was there before.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from runner.cog_server.worker_link import HOPELESS_EXIT_CODE, say
from runner.supervision.unavailable import turn_away

_POLL_S = 0.2
_LAST_WORDS_S = 0.5
"""For coglet to answer, and for its webhooks, after the last prediction."""
_COGLET_END_S = 5.0
"""coglet waits for clients that don't read; we don't."""
_WORKER_END_S = 20.0
"""Beyond the grace period, for the worker to end Triton."""
_KILL_S = 3.0
_HOLDING_REQUEST = (
    b"POST /predictions HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
)


class Doorkeeper:
    """Keeps the door from the moment coglet listens. ``signals``: the read end of the wakeup descriptor."""

    def __init__(self, listener: socket.socket, control: socket.socket, signals: int) -> None:
        """``listener``: coglet's listening socket, a descriptor of our own to it."""
        self._listener = listener
        self._control = control
        self._signals = signals
        self._hold = _hold_open(listener)
        self._is_ready = False
        self._is_worker_gone = False
        self._grace_s = 0.0
        self._said = b""

    def keep(self, is_listening: Callable[[], bool]) -> None:
        """Until the process ends. ``is_listening``: whether coglet still does."""
        while not self._heard_signal():
            if not is_listening():
                self._heard_signal()  # coglet may have heeded the first before we heard of it.
                break
            self._hear(_POLL_S)
            if self._is_worker_gone and self._is_ready:
                time.sleep(2 * _LAST_WORDS_S)
                os._exit(HOPELESS_EXIT_CODE)
        self._stop()

    def _stop(self) -> None:
        threading.Thread(target=self._turn_away, name="turn-away", daemon=True).start()
        if self._is_ready:
            say(self._control, "stop")
            self._await_worker(self._grace_s + _WORKER_END_S)
            time.sleep(_LAST_WORDS_S)
        self._hold.close()
        deadline_s = time.monotonic() + _COGLET_END_S
        while time.monotonic() < deadline_s:
            self._check_second_signal()
            time.sleep(_POLL_S)
        os._exit(0)

    def _await_worker(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while "stopped" not in self._hear(_POLL_S) and not self._is_worker_gone:
            self._check_second_signal()
            if time.monotonic() > deadline_s:
                self._end_at_once(signal.SIGKILL)

    def _check_second_signal(self) -> None:
        number = self._heard_signal()
        if number:
            self._end_at_once(number)

    def _end_at_once(self, number: int) -> None:
        say(self._control, "kill")
        deadline_s = time.monotonic() + _KILL_S
        while not self._is_worker_gone and time.monotonic() < deadline_s:
            self._hear(_POLL_S)
        os._exit(128 + number)

    def _heard_signal(self) -> int:
        """The signal that came, one at a time; 0 if none did."""
        if not select.select([self._signals], [], [], 0)[0]:
            return 0
        number = os.read(self._signals, 1)[0]
        return number if number in (signal.SIGTERM, signal.SIGINT) else 0

    def _hear(self, timeout_s: float) -> list[str]:
        """What the worker says; notes that it is ready, or gone."""
        if self._is_worker_gone:
            time.sleep(timeout_s)
            return []
        if not select.select([self._control.fileno(), self._signals], [], [], timeout_s)[0]:
            return []
        if not select.select([self._control], [], [], 0)[0]:
            return []
        try:
            data = self._control.recv(1024)
        except OSError:
            data = b""
        self._is_worker_gone = not data
        *whole, self._said = (self._said + data).split(b"\n")
        heard = [line.decode() for line in whole]
        for line in heard:
            if line.startswith("ready "):
                self._is_ready, self._grace_s = True, float(line.split()[1])
        return heard

    def _turn_away(self) -> None:
        with suppress(OSError):
            asyncio.run(turn_away(self._listener))


def _hold_open(listener: socket.socket) -> socket.socket:
    """A connection on which coglet waits for the rest of a request."""
    host, port = listener.getsockname()[:2]
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    hold = socket.create_connection((address, port))
    hold.sendall(_HOLDING_REQUEST)
    return hold
