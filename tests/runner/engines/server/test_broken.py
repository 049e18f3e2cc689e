"""The error of requests whose engine has ended. No process."""

from __future__ import annotations

import os
import socket

import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed, RankEnded
from errors.wire import ExitReason
from runner.engines.protocol.messages import Failed, Finished, Submit, TokenLogProb
from runner.engines.server.metrics import EngineMetrics
from runner.engines.server.requests import Request, Requests


class _Client:
    """A client that keeps how its request ended."""

    end: CodedError

    def respond(
        self,
        request: Request,
        tokens: list[int],
        log_probs: list[TokenLogProb],
        end: Finished | Failed | None,
    ) -> None:
        assert isinstance(end, Failed)
        self.end = end.error.restore()

    def flush(self) -> None: ...


@pytest.mark.parametrize("left", [None, RankEnded(world_size=2, reason="out of memory", log_tail="-")])
def test_the_error_that_the_engine_left_is_told_although_its_connection_broke_first(
    monkeypatch: pytest.MonkeyPatch, left: CodedError | None
) -> None:
    """A child that ends before it has read everything resets its socket."""
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)
    exit_reason = ExitReason()
    if left is not None:
        exit_reason.write(left)
    requests = Requests("paced", EngineMetrics("paced"), exit_reason)
    client = _Client()
    request = requests.open(Submit(1, [1], 1), client)
    requests._running[request.number] = request
    requests.broken(_reset())
    told = exit_reason.read()
    assert type(told) is (EngineCrashed if left is None else RankEnded)
    assert str(client.end) == str(told)
    assert exits == [70]


def _reset() -> Exception:
    ours, child = socket.socketpair()
    with ours:
        ours.send(b"unread")
        child.close()
        with pytest.raises(ConnectionResetError) as raised:
            ours.recv(1)
    return raised.value
