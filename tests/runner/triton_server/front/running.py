"""The front of a server under test."""

from __future__ import annotations

from runner.triton_server.front.supervisor import TritonFront
from tests.runner.servers import TritonUnderTest


def front_of(server: TritonUnderTest) -> TritonFront:
    (front,) = (each for each in server.service.stack.processes if isinstance(each, TritonFront))
    return front


def front_pid(server: TritonUnderTest) -> int:
    pid = front_of(server).pid
    assert pid is not None
    return pid
