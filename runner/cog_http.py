"""Cog's HTTP server, whose streams wait for no acknowledgement: ``python -m runner.cog_http --host HOST``.

Takes the options of ``cog.server.http``, which it runs. coglet (seen with Cog 0.23.1) leaves Nagle's
algorithm on: what a stream says after its first event waits until the client has acknowledged that one,
which clients put off for 40 ms. A connection inherits ``TCP_NODELAY`` from the socket that listens.
coglet does not hand that one out, so it is looked for among this process's files.
"""

from __future__ import annotations

import os
import runpy
import socket
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

from runner.cog_log import flat_log
from runner.logs import JSON
from runner.logs import VARIABLE as LOG_FORMAT
from runner.tracing import prepare_cog

_POLL_S = 0.05
_GIVE_UP_S = 60.0


def send_at_once(port: int) -> bool:
    """Let connections to this process's ``port`` send what they have at once; whether it listens there."""
    found = False
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # Another thread may close it while we look.
            if str(file.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(file.name))) as candidate:
                    found |= _set_no_delay(candidate, port)
    return found


def _set_no_delay(candidate: socket.socket, port: int) -> bool:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    if candidate.getsockname()[1] != port:
        return False
    candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return True


def _await_listening(port: int) -> None:
    deadline_s = time.monotonic() + _GIVE_UP_S
    while not send_at_once(port) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


if __name__ == "__main__":
    prepare_cog(os.environ)
    # A port that is no number is Cog's to refuse.
    with suppress(ValueError):
        port = int(os.environ.get("PORT", "5000"))
        threading.Thread(target=_await_listening, args=(port,), name="send-at-once", daemon=True).start()
    with flat_log() if os.environ.get(LOG_FORMAT) == JSON else nullcontext():
        runpy.run_module("cog.server.http", run_name="__main__", alter_sys=True)
