"""An engine on several GPUs: a process per rank, under ``mpirun``, in leader mode.

    engine server ── socket ── launcher (this) ── mpirun ─┬─ rank 0: leads, uses the same socket
                                                          └─ rank 1..: follow

mpirun passes no files but the standard ones to its processes. So each rank connects to a Unix socket of the
launcher, which sends it the exit reason's file and, to rank 0, the engine server's socket. Tokens do not pass
through the launcher. If one process ends, all end: mpirun ends the ranks when one of them ends; the kernel
ends mpirun with the launcher and the ranks with mpirun; a rank ends when its connection to the launcher
closes.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from engine.machine.mpirun import mpi_environment, mpirun
from errors.coded_error import CodedError
from errors.engines import RankEnded
from errors.wire import ExitReason
from runner.supervision.parent_death import die_with_parent

_FAILED_EXIT_CODE = 70
_POLL_S = 0.2
_TOLD_LINES = 5
_LOG_LINES = 50
_LOG_END_S = 2.0
_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>: ?")

log = logging.getLogger("cog_triton.engine")


class Ranks:
    """The processes of one engine, from ``start`` to the end of ``wait``."""

    def __init__(
        self, engine_kind: str, engine_dir: Path, options: Mapping[str, str], world_size: int
    ) -> None:
        self._engine_kind = engine_kind
        self._engine_dir = engine_dir
        self._options = options
        self._world_size = world_size
        self._log_tail: deque[str] = deque(maxlen=_LOG_LINES)
        # NOTE: Linux's abstract names are no files, so that nothing is left however we end. Anyone on the
        # machine may call there: who does is asked for its user.
        self._place = f"cog-triton-ranks-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._calls: list[socket.socket] = []
        self._process: subprocess.Popen[bytes]
        self._log_thread: threading.Thread
        self._exit_reason: ExitReason

    def run(self, connection: socket.socket, exit_reason: ExitReason) -> int:
        """Start the ranks, hand ``exit_reason`` to each and ``connection`` to rank 0, and wait for their end.

        Returns an exit code. An end that is not in order is written to ``exit_reason``.
        """
        self._exit_reason = exit_reason
        try:
            self._start(connection)
            code = self._process.wait()
            error = None if code == 0 else self._ended()
        except CodedError as exc:
            error = exc
        self._listener.close()
        if error is None:
            return 0
        log.critical("%s", error)
        exit_reason.write(error)
        return _FAILED_EXIT_CODE

    def _start(self, connection: socket.socket) -> None:
        """Raises E1008, and if the ranks end before: the error that one left, else E2403."""
        self._listener.bind(f"\0{self._place}")
        self._listener.listen(self._world_size)
        self._process = self._launch()
        self._log_thread = threading.Thread(target=self._forward_log, name="rank-log", daemon=True)
        self._log_thread.start()
        self._listener.settimeout(_POLL_S)
        while len(self._calls) < self._world_size:
            try:
                call, _ = self._listener.accept()
            except TimeoutError:
                if self._process.poll() is not None:
                    raise self._ended() from None
                continue
            if _user_of(call) != os.getuid():
                call.close()
                continue
            self._calls.append(call)
            rank = int(call.recv(16) or b"-1")
            descriptors = [self._exit_reason.descriptor] + ([connection.fileno()] if rank == 0 else [])
            socket.send_fds(call, [b"files"], descriptors)

    def _launch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command(),
            # NOTE: when a rank is gone, mpirun would ask the others to end and wait for a second, which their
            # requests would wait, too. Ranks that end in order are never asked by mpirun.
            env={**mpi_environment(os.environ), "OMPI_MCA_odls_base_sigkill_timeout": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )

    def _command(self) -> list[str]:
        command = [*mpirun(), "--tag-output", "-n", str(self._world_size)]
        command += [sys.executable, "-m", "runner.engines.worker.rank", "--call", self._place]
        command += ["--kind", self._engine_kind, "--engine-dir", str(self._engine_dir)]
        for key, value in self._options.items():
            command += ["--option", f"{key}={value}"]
        return command

    def _forward_log(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = _TAG.sub(rb"rank \1: ", line).decode(errors="replace").rstrip()
            if text:
                self._log_tail.append(text)
                print(text, file=sys.stderr, flush=True)

    def _ended(self) -> CodedError:
        """The error that a rank left as its exit reason, else E2403 with the log's last lines."""
        code = self._process.wait()
        self._log_thread.join(_LOG_END_S)
        if (cause := self._exit_reason.read()) is not None:
            return cause
        lines = [line for line in self._log_tail if not set(line) <= set("-= ")]
        ours = [line for line in lines if line.startswith("rank ")] or lines
        why = next((line for line in lines if "noticed that process" in line), f"exit code {code}")
        return RankEnded(
            world_size=self._world_size, reason=why, log_tail=" | ".join(ours[-_TOLD_LINES:]) or "(none)"
        )


def _user_of(call: socket.socket) -> int:
    """The user id of the process at the other end."""
    size_bytes = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size_bytes))
    return int(uid)
