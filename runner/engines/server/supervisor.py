"""The engine server as a supervised child: it starts before its engine is there, and before Triton.

The runner listens on the socket itself, from before the child's start to its own end: clients that connect
while the engine is loaded, or loaded again, wait instead of being refused.
"""

import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.kinds import find_kind
from engine.machine.processes import name_of
from engine.machine.root import own_environment
from errors.coded_error import CodedError
from errors.engines import EngineStartFailed
from runner.engines.guides.check import PROCESS_NAME
from runner.engines.protocol.client import EngineClient
from runner.engines.server.loading import missing_package
from runner.engines.server.start import EngineStart
from runner.supervision.child import Log
from runner.supervision.failures import ProcessFailure
from runner.supervision.supervised import SupervisedProcess
from runner.supervision.tuning import restore_malloc

_BACKLOG = 64
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'$")
_SILENCE_S = 3.0
"""Limit of silence: the engine server sends its statistics every second."""


class EngineServer(SupervisedProcess):
    """The supervised engine server. ``client``, this process's own, sees that it is ready and alive.

    ``python`` is the engine environment's interpreter; ``start_timeout_s`` counts from the engine's arrival.
    """

    part = "engine"
    log_prefix = "engine_server"
    start_limit = " (engine_start_timeout_s in the server configuration)"

    def __init__(
        self,
        python: str,
        start: EngineStart,
        socket_path: Path,
        client: EngineClient,
        log: Log,
        on_failure: Callable[[ProcessFailure], bool],
        *,
        start_timeout_s: float,
    ) -> None:
        super().__init__("the engine server", log, on_failure, start_timeout_s)
        self._python = python
        self._client = client
        self._is_loaded = False
        self._socket_path = socket_path
        self._socket = socket.socket(socket.AF_UNIX)
        socket_path.unlink(missing_ok=True)
        self._socket.bind(str(socket_path))
        socket_path.chmod(0o600)
        self._socket.listen(_BACKLOG)
        files = {"socket_fd": self._socket.fileno(), "exit_reason_fd": self.exit_reason.descriptor}
        self._start_message = msgspec.structs.replace(start, **files)

    async def launch(self) -> None:
        self._is_loaded = False
        start = msgspec.structs.replace(self._start_message, restarts=self.restarts)
        await self.launch_module(
            "runner.engines.server.main",
            start.encode(),
            [start.socket_fd, start.exit_reason_fd],
            engine_environment(start.engine_kind),
            self._python,
        )

    async def is_ready(self) -> bool:
        self._is_loaded = self._client.is_ready
        return self._is_loaded

    def start_phase(self) -> str:
        return "loading the engine"

    def is_waiting(self) -> bool:
        return not self._start_message.arrival.exists()

    async def is_answering(self) -> bool:
        return self._client.is_ready and self._client.silence_s < _SILENCE_S

    def processes(self) -> dict[int, str]:
        """Return the processes but those that check guides, which the engine server replaces itself."""
        found = super().processes()
        return {pid: name for pid, name in found.items() if name_of(pid).encode() != PROCESS_NAME}

    def start_error(self, reason: str) -> CodedError:
        kind, last_lines = self._start_message.engine_kind, self.child.last_lines()
        if missing := _MISSING_MODULE.search(last_lines):  # Its main module could not be imported.
            return missing_package(kind, missing[1], self._python)
        return EngineStartFailed(engine_kind=kind, reason=f"{reason}; its last log lines: {last_lines}")

    def stop_signal(self) -> signal.Signals:
        # It reacts to SIGTERM once its engine is loaded.
        return signal.SIGTERM if self._is_loaded else signal.SIGKILL

    async def stop(self) -> None:
        await super().stop()
        self._socket.close()
        self._socket_path.unlink(missing_ok=True)


def engine_environment(engine_kind: str) -> dict[str, str]:
    """Return our environment without secrets and variables of our Python: the engine has its own packages."""
    environment = own_environment() | {"PYTHONUNBUFFERED": "1"}
    restore_malloc(environment)
    environment.pop("PYTHONHOME", None)
    return {**find_kind(engine_kind).environment, **environment}
