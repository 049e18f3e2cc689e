"""What an engine server keeps for a client that does not read is bounded by its bytes, whatever it is."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import pytest

from errors.engines import EngineFailed
from errors.wire import WireError
from runner.engines.protocol.messages import Failed, Finished, Statistics, Submit, TokenLogProb
from runner.engines.protocol.relay import Stream
from runner.engines.server import clients
from runner.engines.server.clients import ClientConnection
from runner.engines.server.orders import Orders
from runner.engines.server.requests import Request, Requests

KEPT_BYTES = 1 << 20
WORDS = WireError.of(EngineFailed(engine_kind="paced", reason="x" * 3000))
REQUEST = Request(1, Submit(1, [1], 1), cast(ClientConnection, None), Stream(lambda tokens, end: None))


Answer = Callable[[ClientConnection], None]
TOP = [(1 << 30, -1.5)] * 20
ANSWERS: dict[str, Answer] = {
    "tokens": lambda client: client.respond(REQUEST, [1 << 30] * 1000, [], None),
    "log probabilities": lambda client: client.respond(REQUEST, [], [TokenLogProb(-1.5, TOP)] * 10, None),
    "beams": lambda client: client.respond(REQUEST, [], [], Finished(1, "end", [[1 << 30] * 100] * 10)),
    "failures": lambda client: client.respond(REQUEST, [], [], Failed(1, WORDS)),
    "statistics": lambda client: client.send(Statistics(0, 0, counts=[0.5] * 500)),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_client_that_leaves_too_much_unread_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(clients, "_MAX_UNREAD_BYTES", KEPT_BYTES)
    ours, theirs = socket.socketpair()
    connection = ClientConnection(ours, cast(Requests, None), cast(Orders, None))
    with theirs:
        for _ in range(10_000):
            answer(connection)
            connection.flush()
            assert len(connection._unread) <= KEPT_BYTES
        received_bytes = 0
        with suppress(ConnectionError):
            while data := theirs.recv(1 << 20):
                received_bytes += len(data)
    connection.close()
    assert received_bytes < 2 * KEPT_BYTES
