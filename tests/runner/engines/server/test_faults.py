"""Faults inside the engine server: each costs what it concerns, and nothing else."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, EngineFailed, RankEnded
from errors.wire import ExitReason
from runner.engines.protocol.messages import Failed, Finished, Ready, Statistics, Submit, TokenLogProb
from runner.engines.server.clients import Clients
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Request, Requests
from tests.runner.engines.engine_server import EngineServerClient

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
    """A client that keeps the errors of its requests."""

    def __init__(self) -> None:
        self.errors: list[CodedError] = []

    def respond(
        self,
        request: Request,
        tokens: list[int],
        log_probs: list[TokenLogProb],
        end: Finished | Failed | None,
    ) -> None:
        assert isinstance(end, Failed)
        self.errors.append(end.error.restore())

    def cached(self, request: Request, count: int) -> None: ...

    def flush(self) -> None: ...


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
def exit_reason() -> ExitReason:
    return ExitReason()


@pytest.fixture
def requests(exit_reason: ExitReason) -> Requests:
    requests = Requests("paced", EngineMetrics("paced"), exit_reason)
    requests.serve(FailingEngine())
    return requests


def test_a_library_that_raises_fails_the_request_alone(requests: Requests) -> None:
    recorder = Recorder()
    requests.submit(requests.open(Submit(1, [5], 3), recorder))
    requests.close()
    (error,) = recorder.errors
    assert isinstance(error, EngineFailed)
    assert "out of blocks" in str(error)
    assert not requests._running


@pytest.mark.parametrize("left", [None, RankEnded(world_size=2, reason="out of memory", log_tail="-")])
def test_the_error_that_the_engine_left_is_told_although_its_connection_broke_first(
    requests: Requests, exit_reason: ExitReason, monkeypatch: pytest.MonkeyPatch, left: CodedError | None
) -> None:
    """A child that ends before it has read everything resets its socket."""
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    if left is not None:
        exit_reason.write(left)
    recorder = Recorder()
    request = requests.open(Submit(1, [1], 1), recorder)
    requests._running[request.number] = request
    requests.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
    told = exit_reason.read()
    assert type(told) is (EngineCrashed if left is None else RankEnded)
    assert [str(error) for error in recorder.errors] == [str(told)]
    assert exits == [70]


def test_a_client_that_comes_when_files_are_short_is_served_later(requests: Requests, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        full: Any = FullListener(listener)
        Clients(full, requests, FailingEngine())
        client = EngineServerClient(tmp_path / "engine")
        assert client.ready == READY
        client.close()
        listener.shutdown(socket.SHUT_RDWR)
