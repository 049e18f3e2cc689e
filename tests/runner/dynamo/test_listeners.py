"""A socket that Dynamo's runtime opens on all addresses answers on the worker's address alone."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.dynamo.listeners import confine_listeners

HOST, OTHER = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as made:
        yield made


def is_answered(listener: socket.socket, host: str) -> bool:
    try:
        socket.create_connection((host, listener.getsockname()[1]), timeout=0.5).close()
    except TimeoutError:
        return False
    return True


def test_it_answers_on_one_address_alone(listener: socket.socket) -> None:
    assert is_answered(listener, HOST)
    assert is_answered(listener, OTHER)
    confine_listeners(HOST)
    assert is_answered(listener, HOST)
    assert not is_answered(listener, OTHER)
    confine_listeners(OTHER)
    assert is_answered(listener, OTHER)


def test_other_sockets_stay_as_they_are_and_no_descriptor_is_left_open(listener: socket.socket) -> None:
    with socket.create_server((OTHER, 0)) as own, socket.socketpair()[0], Path(os.devnull).open():
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(50):
            confine_listeners(HOST)
        assert is_answered(own, OTHER)
        # Threads that other tests left in this process may open some, too.
        assert len(list(Path("/proc/self/fd").iterdir())) < before + 25
