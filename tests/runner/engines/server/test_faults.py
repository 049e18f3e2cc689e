"""Faults inside the engine server: each costs what it concerns, and nothing else."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from errors.wire import ExitReason
from runner.engines.protocol.messages import Failed, Finished, Ready, Statistics, Submit, TokenLogProb
from runner.engines.server.clients import Clients
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Requests
from tests.runner.engines.engine_server import EngineServerClient

pytestmark = pytest.mark.servers

READY = Ready("paced", vocab_size=100, max_sequence_length=100, max_batch_size=8)


class FailingEngine:
    """Its library raises for every request."""

    ready = READY

    def submit(self, request: Submit) -> None:
        raise RuntimeError("out of blocks")

    def cancel(self, request_id: int) -> None:
        pass

    def statistics(self) -> Statistics:
        return Statistics(active=0, queued=0)

    def close(self) -> None:
        pass


class Recorder:
    """A client that keeps the ends of its requests."""

    def __init__(self) -> None:
        self.ends: list[Finished | Failed | None] = []

    def respond(
        self, request_id: int, tokens: list[int], log_probs: list[TokenLogProb], end: Finished | Failed | None
    ) -> None:
        self.ends.append(end)

    def flush(self) -> None:
        pass


class FullListener:
    """The process has too many open files when the first client connects."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._has_failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self._has_failed:
            self._has_failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def fileno(self) -> int:
        return self._listener.fileno()


@pytest.fixture
def requests() -> Requests:
    requests = Requests("paced", EngineMetrics("paced"), ExitReason())
    requests.serve(FailingEngine())
    return requests


def test_a_library_that_raises_fails_the_request_alone(requests: Requests) -> None:
    recorder = Recorder()
    requests.submit(requests.open(Submit(1, [5], 3), recorder))
    requests.close()
    (end,) = recorder.ends
    assert isinstance(end, Failed)
    assert "E2109" in str(end.error.restore())
    assert "out of blocks" in str(end.error.restore())
    assert not requests._running


def test_a_client_that_comes_when_files_are_short_is_served_later(requests: Requests, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        full: Any = FullListener(listener)
        Clients(full, requests, READY)
        client = EngineServerClient(tmp_path / "engine")
        assert client.ready == READY
        client.close()
        listener.shutdown(socket.SHUT_RDWR)
