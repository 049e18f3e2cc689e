"""A real engine server for tests, started as the runner's service does: the socket is there before it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec

from engine.machine.root import SOURCE_ROOT
from errors.wire import ExitReason
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.messages import FromClient, Ready, ToClient
from runner.engines.protocol.wire import FrameReader, frame
from runner.engines.server.start import EngineStart

_END_S = 60.0
_START_S = 900.0


class EngineServerUnderTest:
    """The process and the listening socket at ``path``, which outlives it. Stop it."""

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        kind: str,
        engine_dir: Path,
        options: Mapping[str, str],
        folder: Path,
        *,
        starts: bool = True,
        hang_timeout_s: float = 300.0,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        log_path: Path | None = None,
    ) -> None:
        """Start at once if ``starts``; otherwise ``start`` is called later, when clients may wait already.

        ``log_path``: where its log goes, instead of the test's.
        """
        self._python = python
        self._log_path = log_path
        self.path = folder / "engine"
        self.exit_reason = ExitReason()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT), **(environment or {})}
        arrival = folder / "arrival"
        announce(arrival, Arrived((0,), 0))
        self._message = EngineStart(
            engine_kind=kind,
            engine_dir=engine_dir,
            options=dict(options),
            socket_fd=self._listener.fileno(),
            exit_reason_fd=self.exit_reason.descriptor,
            arrival=arrival,
            hang_timeout_s=hang_timeout_s,
        )
        if starts:
            self.start()

    def start(self) -> None:
        self.exit_reason.clear()
        with ExitStack() as stack:
            log = None if self._log_path is None else stack.enter_context(self._log_path.open("wb"))
            self.process = subprocess.Popen(
                [self._python, "-m", "runner.engines.server.main"],
                env=self._environment,
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=(self._listener.fileno(), self.exit_reason.descriptor),
            )
        with self.process.stdin as stdin:
            stdin.write(self._message.encode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(_END_S)

    def exit_code(self) -> int:
        """Wait until the process has ended by itself."""
        return self.process.wait(_START_S)

    def connect(self) -> EngineServerClient:
        """Return a client that has seen the engine ready."""
        return EngineServerClient(self.path)

    def stop(self) -> None:
        with closing(self._listener):
            if hasattr(self, "process"):
                with suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGTERM)
                self.process.wait(_END_S)


class EngineServerClient:
    """The plainest client: it sends what it is told to and reads message by message. Close it."""

    def __init__(self, path: Path) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(_START_S)
        self.socket.connect(str(path))
        self._batches = FrameReader(self.socket, list[ToClient]).batches()
        self._messages: list[ToClient] = []
        ready = self.receive()
        assert isinstance(ready, Ready)
        self.ready = ready

    def send(self, *messages: FromClient) -> None:
        self.socket.sendall(frame(self._encoder, messages))

    def receive(self) -> ToClient:
        while not self._messages:
            if (batch := next(self._batches, None)) is None:
                raise EOFError
            self._messages += batch
        return self._messages.pop(0)

    def close(self) -> None:
        self.socket.close()
