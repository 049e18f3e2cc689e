"""The slot's connection to an engine server that behaves badly: it connects again, and says what was lost."""

import queue
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import msgpack

from errors.engines import EngineCrashed
from runner.engines.protocol.messages import Cancel, Ready, Statistics, ToClient
from runner.engines.protocol.wire import frame
from runner.slot.engine_connection import EngineConnection

READY = Ready("paced", vocab_size=100, max_sequence_length=100, max_batch_size=8)
DEADLINE_S = 240.0


class Listening:
    """A listener that keeps the connection's reports."""

    def __init__(self) -> None:
        self.messages: queue.Queue[ToClient] = queue.Queue()
        self.losses: queue.Queue[EngineCrashed] = queue.Queue()

    def received(self, messages: list[ToClient]) -> None:
        for message in messages:
            if message == Statistics(active=13, queued=0):
                raise RuntimeError("no luck")
            self.messages.put(message)

    def lost(self, error: EngineCrashed) -> None:
        self.losses.put(error)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(DEADLINE_S)
        listener.bind(str(path))
        listener.listen()
        yield listener


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def connection(path: Path, listening: Listening) -> Iterator[EngineConnection]:
    connection = EngineConnection(path, listening.received, listening.lost)
    yield connection
    connection.close()


def serve(listener: socket.socket, *messages: ToClient) -> socket.socket:
    """Accept the connection, and send ``Ready`` with these."""
    accepted, _ = listener.accept()
    accepted.sendall(frame(msgpack.Encoder(), [READY, *messages]))
    return accepted


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "its connection was closed"),
        (struct.pack("<I", 3) + b"\xc1\xc1\xc1", "MessagePack"),
        (frame(msgpack.Encoder(), [{"type": "Other"}]), "Other"),
        (frame(msgpack.Encoder(), [Statistics(active=13, queued=0)]), "no luck"),
    ],
    ids=["closed", "malformed", "unknown", "own fault"],
)
def test_a_lost_connection_is_reported_once_and_made_again(
    listener: socket.socket, connection: EngineConnection, listening: Listening, data: bytes, says: str
) -> None:
    for _ in range(3):
        with serve(listener) as server:
            assert listening.messages.get(timeout=DEADLINE_S) == READY
            server.sendall(data)
        error = listening.losses.get(timeout=DEADLINE_S)
        assert error.facts["engine_kind"] == "paced"
        assert says in str(error)
        with pytest.raises(EngineCrashed, match="it is not ready yet") as raised:
            connection.send(Cancel(1))
        assert raised.value.facts["was_ready"] is False
    assert listening.losses.empty()


def test_an_engine_server_that_ends_before_it_is_ready_loses_nothing(
    listener: socket.socket, connection: EngineConnection, listening: Listening
) -> None:
    listener.accept()[0].close()
    with serve(listener):
        connection.wait_ready()
    listening.losses.get(timeout=DEADLINE_S)
    assert listening.losses.empty()


def test_closing_ends_the_thread_and_is_no_loss(
    listener: socket.socket, connection: EngineConnection, listening: Listening
) -> None:
    with serve(listener) as server:
        connection.wait_ready()
        connection.close()
        assert server.recv(1) == b""
    assert not connection._thread.is_alive()
    assert listening.losses.empty()
