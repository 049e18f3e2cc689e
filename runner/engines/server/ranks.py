"""An engine on several GPUs: a process per rank, under ``mpirun``, in leader mode.

    engine server ── mpirun ─┬─ rank 0: leads, serves the engine server's socket
                             └─ rank 1..: follow

mpirun passes no files but the standard ones to its processes. So each rank connects to a Unix socket of the
engine server, which sends it the exit reason's file and, to rank 0, its socket. If one process ends, all end:
mpirun ends the ranks when one of them ends; the kernel ends mpirun with the engine server and the ranks with
mpirun; a rank ends when its connection to the engine server closes.
"""

import os
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence

from engine.machine.mpirun import mpi_environment, mpirun
from errors.engines import RankEnded
from runner.supervision.child import die_with_parent

_POLL_S = 0.2
_SHOWN_LINES = 5
_LOG_LINES = 50
_LOG_END_S = 2.0
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>: ?")


class Ranks:
    """The processes of all ranks; ``process`` is mpirun."""

    def __init__(self, command: Sequence[str], num_ranks: int, exit_reason_fd: int, socket_fd: int) -> None:
        """Start the ranks; return when each has its files or mpirun has ended. Raises E1008."""
        self._num_ranks = num_ranks
        self._log_tail: deque[str] = deque(maxlen=_LOG_LINES)
        self._calls: list[socket.socket] = []
        # NOTE: Linux's abstract names are no files, so that nothing is left however we end. Any process may
        # connect there: its user is checked.
        place = f"cog-triton-ranks-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{place}")
            listener.listen(num_ranks)
            listener.settimeout(_POLL_S)
            self.process = subprocess.Popen(
                [*mpirun(), "--tag-output", "-n", str(num_ranks), *command, place],
                # NOTE: when a rank is gone, mpirun would ask the others to end and wait for a second, and
                # their requests with it. Ranks that end in order are never asked by mpirun.
                env={**mpi_environment(os.environ), "OMPI_MCA_odls_base_sigkill_timeout": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
            self._log_thread = threading.Thread(target=self._forward_log, name="rank-log", daemon=True)
            self._log_thread.start()
            while len(self._calls) < num_ranks and self.process.poll() is None:
                try:
                    call, _ = listener.accept()
                except TimeoutError:
                    continue
                if _user_of(call) != os.getuid():
                    call.close()
                    continue
                self._calls.append(call)
                descriptors = [exit_reason_fd] + ([socket_fd] if call.recv(16) == b"0" else [])
                socket.send_fds(call, [b"files"], descriptors)

    def error(self, code: int) -> RankEnded:
        """Return E2403 with the log's last lines, after mpirun ended with this exit code."""
        self._log_thread.join(_LOG_END_S)
        lines = [line for line in self._log_tail if not set(line) <= set("-= ")]
        ours = [line for line in lines if line.startswith("rank ")] or lines
        why = next((line for line in lines if "noticed that process" in line), f"exit code {code}")
        log_tail = " | ".join(ours[-_SHOWN_LINES:]) or "(none)"
        return RankEnded(world_size=self._num_ranks, reason=why, log_tail=log_tail)

    def _forward_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text = _TAG.sub(rb"rank \1: ", line).decode(errors="replace").rstrip()
            if text:
                self._log_tail.append(text)
                print(text, file=sys.stderr, flush=True)


def _user_of(call: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    size_bytes = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size_bytes))
    return int(uid)
