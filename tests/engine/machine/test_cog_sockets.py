"""Servers of the same process id take turns. Turns of one process stand in for those of two containers."""

import os
import socket
import threading

import pytest

from engine.machine import cog_sockets
from engine.machine.cog_sockets import await_turn

WAITS_S = 0.3
GOES_ON_S = 30.0


def listener() -> socket.socket:
    """Return the first of coglet's sockets."""
    taken = socket.socket(socket.AF_UNIX)
    taken.bind(f"\0coglet-{os.getpid()}-0")
    taken.listen()
    return taken


def begin() -> threading.Thread:
    waiting = threading.Thread(target=await_turn, daemon=True)
    waiting.start()
    return waiting


def test_a_server_waits_until_the_one_before_it_has_connected_its_worker() -> None:
    await_turn()
    second = begin()
    second.join(WAITS_S)
    assert second.is_alive(), "coglet of the first has not even made its sockets"
    with listener() as first_of_the_first, socket.socket(socket.AF_UNIX) as worker:
        worker.connect(f"\0coglet-{os.getpid()}-0")
        accepted, _ = first_of_the_first.accept()
        second.join(WAITS_S)
        assert second.is_alive()
        first_of_the_first.close()
        second.join(GOES_ON_S)
        assert not second.is_alive(), "an accepted socket keeps the name, but does not take it"
        accepted.close()
    with listener():
        for holding in (each for each in threading.enumerate() if each.name == "cog-sockets"):
            holding.join(GOES_ON_S)
            assert not holding.is_alive(), "the turn is the next one's once coglet has its sockets"


def test_after_the_limit_a_server_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cog_sockets, "_LIMIT_S", 0.1)
    with listener():
        waiting = begin()
        waiting.join(GOES_ON_S)
        assert not waiting.is_alive()
