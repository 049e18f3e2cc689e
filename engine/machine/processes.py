"""What /proc has of processes: state, parent, descendants, session, and which stay stopped."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_STOPPED = "T"
"""State of a process that SIGSTOP or a terminal stopped. A debugger's stop is another state, ``t``."""
_STOPPED_LIMIT_S = 0.5
"""Time for which a process may be stopped: some tools stop one for a moment and let it go on."""
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
_SIGNAL_BITS = 0x7F
_MOST_BYTES = 4096


def state_and_parent(pid: int | str) -> tuple[str, int]:
    """Return the state's letter and the parent's process id; ``("X", 0)`` for a process that is gone."""
    fields = _fields(pid)
    return (fields[0], int(fields[1])) if fields else ("X", 0)


def signal_that_ended(pid: int) -> int | None:
    """Return the signal that ended a process; 0 if it exited or that is unknown; None while it runs."""
    fields = _fields(pid)
    if not fields or fields[0] == "X":
        return 0
    return int(fields[-1]) & _SIGNAL_BITS if fields[0] == "Z" else None


def name_of(pid: int) -> str:
    """Return the process's short name; blank once it has ended."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*"):
        children.setdefault(state_and_parent(path.name)[1], []).append(int(path.name))
    return children


def descendants(pid: int) -> list[int]:
    children = children_by_parent()
    found, rest = [], [pid]
    while rest:
        rest = [child for parent in rest for child in children.get(parent, [])]
        found += rest
    return found


def session_members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    stats = {int(path.name): _fields(path.name) for path in _PROC.glob("[0-9]*")}
    return [
        pid for pid, fields in stats.items() if fields and fields[0] not in "ZX" and int(fields[3]) == session
    ]


def commands_listening(port: int) -> list[list[str]]:
    """Return command lines of the processes that listen at a TCP port, as far as this user may see them."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in (_PROC / "net" / name).read_text().splitlines()[1:]]
            inodes |= {
                row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port
            }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # The process is another user's, or has ended.
            if any(str(file.readlink()) in sockets for file in (process / "fd").iterdir()):
                found.append((process / "cmdline").read_text(errors="replace").split("\0"))
    return found


class StoppedWatch:
    """Search for processes that were stopped and not continued, which is certain and cheap."""

    def __init__(self, limit_s: float = _STOPPED_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._since_s: dict[int, float] = {}

    def find(self, pids: Iterable[int]) -> int | None:
        """Return one of ``pids`` that every call has found stopped for longer than the limit."""
        now_s = time.monotonic()
        stopped = [pid for pid in pids if state_and_parent(pid)[0] == _STOPPED]
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in stopped}
        return next((pid for pid in stopped if now_s - self._since_s[pid] >= self._limit_s), None)


def _fields(pid: int | str) -> list[str]:
    """Return the fields of ``stat`` after the name, which is in parentheses; none for a process that is gone.

    NOTE: without a file object, which makes twice as many system calls, each of which hands over the GIL.
    """
    try:
        descriptor = os.open(_PROC / str(pid) / "stat", os.O_RDONLY)
        try:
            return os.read(descriptor, _MOST_BYTES).decode(errors="replace").rpartition(")")[2].split()
        finally:
            os.close(descriptor)
    except OSError:
        return []
