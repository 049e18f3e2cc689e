"""Names of the sockets between Cog's server and its worker, in containers that share a network.

coglet calls them ``coglet-PID-NUMBER`` in Linux's abstract namespace, which belongs to the network. In two
containers Cog's server mostly has the same PID. The names are taken until the worker has connected, so of two
servers that start together one would fail.
"""

import errno
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

_LIMIT_S = 60.0
_POLL_S = 0.02
_LISTENING = "00010000"
"""Flags of a socket that listens, in /proc/net/unix. Those that it accepted have its name and other flags."""


def await_turn() -> None:
    """Wait until no other server has this process's names, then keep servers of ours waiting.

    Call this just before coglet starts: they wait until it has the names. After a minute this goes on in any
    case, and coglet says that the address is in use.
    """
    name = f"coglet-{os.getpid()}-0"
    turn, deadline_s = socket.socket(socket.AF_UNIX), time.monotonic() + _LIMIT_S
    while _is_taken(turn, f"\0cog-triton-{name}") and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    while _is_listening(name) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    threading.Thread(target=_hold, args=(turn, name), name="cog-sockets", daemon=True).start()


def _hold(turn: socket.socket, name: str) -> None:
    """Keep the turn until coglet has its names."""
    deadline_s = time.monotonic() + _LIMIT_S
    with turn:
        while not _is_listening(name) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def _is_taken(turn: socket.socket, name: str) -> bool:
    """Bind ``turn`` to the name. Return True if another has it; any other error is coglet's, too."""
    try:
        turn.bind(name)
    except OSError as exc:
        return exc.errno == errno.EADDRINUSE
    return False


def _is_listening(name: str) -> bool:
    with suppress(OSError), Path("/proc/net/unix").open(errors="replace") as sockets:
        return any(line.endswith(f" @{name}\n") and line.split()[3] == _LISTENING for line in sockets)
    return False  # Without the list, coglet itself finds out.
