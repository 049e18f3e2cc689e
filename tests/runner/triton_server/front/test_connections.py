"""The connections of the gRPC port are bounded."""

from __future__ import annotations

import asyncio

import pytest

from runner.triton_server.front.grpc import server as module
from runner.triton_server.front.grpc.server import GRPCServer
from tests.runner.triton_server.front.grpc.client import Client


class _Connection:
    """A connection whose ``abort`` returns before it is lost, as with asyncio."""

    def __init__(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


async def _server() -> GRPCServer:
    server = Client().server
    server.connections.clear()
    return server


def test_many_that_come_at_once_each_take_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100
    monkeypatch.setattr(module, "_MAX_CONNECTIONS", most)
    server = asyncio.run(_server())
    first = [_Connection(is_idle=number >= 10) for number in range(most)]
    further = [_Connection(is_idle=False) for _ in range(most)]
    for each in [*first, *further]:
        server.add(each)  # type: ignore[arg-type]
    assert len(server.connections) == most
    assert [each.is_aborted for each in first] == [each.is_idle for each in first]
    assert [each.is_aborted for each in further].index(True) == most - 10
