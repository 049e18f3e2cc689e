"""The engine process of this node as a supervised child (``runner.engines.server.node``)."""

import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from errors.coded_error import CodedError
from errors.engines import EngineStartFailed
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import engine_environment
from runner.supervision.child import Log
from runner.supervision.failures import ProcessFailure
from runner.supervision.supervised import SupervisedProcess

_SILENCE_S = 5.0
"""Limit of silence: the process sends a byte every second."""
_READ_BYTES = 4096


class Node(SupervisedProcess):
    """The supervised process, from ``begin`` to ``stop``."""

    part = "engine"
    log_prefix = "engine_server"
    start_limit = " (engine_start_timeout_s in the server configuration)"

    def __init__(
        self,
        python: str,
        start: EngineStart,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
        *,
        start_timeout_s: float,
    ) -> None:
        super().__init__("the engine process", log, on_failure, start_timeout_s)
        self._python = python
        self._start_message = start
        self._connection: socket.socket | None = None
        self._heard_s = -_SILENCE_S

    async def launch(self) -> None:
        self._heard_s = -_SILENCE_S
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        with theirs:
            files = {"socket_fd": theirs.fileno(), "exit_reason_fd": self.exit_reason.descriptor}
            start = msgspec.structs.replace(self._start_message, **files)
            environment = engine_environment(start.engine_kind)
            module = "runner.engines.server.node"
            await self.launch_module(module, start.encode(), [*files.values()], environment, self._python)

    async def is_ready(self) -> bool:
        assert self._connection is not None, "launched"
        with suppress(BlockingIOError):
            if self._connection.recv(_READ_BYTES):
                self._heard_s = time.monotonic()
        return time.monotonic() - self._heard_s < _SILENCE_S

    def start_phase(self) -> str:
        return "joining the head and loading the engine"

    def start_error(self, reason: str) -> CodedError:
        last_lines = self.child.last_lines()
        kind = self._start_message.engine_kind
        return EngineStartFailed(engine_kind=kind, reason=f"{reason}; its last log lines: {last_lines}")

    def stop_signal(self) -> signal.Signals:
        return signal.SIGKILL  # It has no requests of its own.

    def clean_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
