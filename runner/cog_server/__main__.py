"""Cog's HTTP server as we want it: ``python -m runner.cog_server --host HOST``.

Takes the options of ``cog.server.http``, which it runs. What coglet (seen with Cog 0.23.1) leaves to wish
for is done to the socket on which it listens, and which it does not hand out, so that it is looked for among
this process's files: a connection inherits its listener's options. They are ``TCP_NODELAY`` (coglet leaves
Nagle's algorithm on: what a stream says after its first event waits until the client has acknowledged that
one, which clients put off for 40 ms), and two by which Linux cuts clients that vanished or stopped reading.
And the queue of connections that it has not accepted yet is made longer than a burst.
How it stops is told in ``doorkeeper``.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from runner.cog_server.json_logs import flat_log
from runner.cog_server.shutdown import Doorkeeper
from runner.cog_server.worker_link import VARIABLE
from runner.observability.logs import JSON, log_in
from runner.observability.logs import VARIABLE as LOG_FORMAT
from runner.observability.tracing import prepare_cog
from runner.supervision.client_sockets import hold_bursts, set_options
from runner.supervision.thread_caches import switch_off

_POLL_S = 0.05
_GIVE_UP_S = 60.0
_MOST_STREAMS = 511
"""Each prediction holds one of coglet's 512 threads, and one is needed to send what they say."""


def find_listeners(port: int) -> list[tuple[str, socket.socket]]:
    """What listens on ``port`` in this process: the number of the file, and a socket of our own to it."""
    found = []
    for number in _sockets():  # All first: what we open meanwhile has numbers, too.
        with suppress(OSError):  # Another thread may close it while we look.
            candidate = socket.socket(fileno=os.dup(int(number)))
            if _listens(candidate, port):
                found.append((number, candidate))
            else:
                candidate.close()
    return found


def _sockets() -> list[str]:
    """The numbers of this process's files that are sockets."""
    numbers = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(file.readlink()).startswith("socket:"):
                numbers.append(file.name)
    return numbers


def _listens(candidate: socket.socket, port: int) -> bool:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    return bool(candidate.getsockname()[1] == port)


def _keep_door(port: int, control: socket.socket, workers_end: socket.socket, signals: int) -> None:
    deadline_s = time.monotonic() + _GIVE_UP_S
    while not (found := find_listeners(port)):
        if time.monotonic() > deadline_s:
            return
        time.sleep(_POLL_S)
    (number, listener), *_ = found
    set_options(listener)
    hold_bursts(listener)
    file = Path(f"/proc/self/fd/{number}")
    place = file.readlink()

    def is_listening() -> bool:
        with suppress(OSError):
            return file.readlink() == place
        return False

    control.recv(len("hello\n"), socket.MSG_PEEK)
    workers_end.close()  # The worker has its own: now we hear if it ends.
    Doorkeeper(listener, control, signals).keep(is_listening)


def _start_door_keeping(port: int) -> None:
    control, workers_end = socket.socketpair()
    workers_end.set_inheritable(True)
    os.environ[VARIABLE] = str(workers_end.fileno())
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # The doorkeeper hears it, and coglet.
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    arguments = (port, control, workers_end, signals)
    threading.Thread(target=_keep_door, args=arguments, name="doorkeeper", daemon=True).start()


def warn_of_too_many(environment: Mapping[str, str]) -> None:
    """Tell who lets more streams begin than Cog can send at once: what is too much waits, and looks hung."""
    places = environment.get("COG_MAX_CONCURRENCY", "")
    if places.isdecimal() and int(places) > _MOST_STREAMS:
        log_in(environment.get(LOG_FORMAT))(
            f"warning: COG_MAX_CONCURRENCY is {places}, but Cog streams {_MOST_STREAMS} predictions at once: "
            f"while more run, none sends its text until another ends; set it to {_MOST_STREAMS} or less, or "
            "let clients that stream use the OpenAI-compatible API."
        )


if __name__ == "__main__":
    warn_of_too_many(os.environ)
    prepare_cog(os.environ)
    switch_off(os.environ)
    # A port that is no number is Cog's to refuse.
    with suppress(ValueError):
        _start_door_keeping(int(os.environ.get("PORT", "5000")))
    with flat_log() if os.environ.get(LOG_FORMAT) == JSON else nullcontext():
        runpy.run_module("cog.server.http", run_name="__main__", alter_sys=True)
