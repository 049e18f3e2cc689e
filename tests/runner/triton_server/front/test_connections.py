"""The connections of a port are bounded."""

from __future__ import annotations

from runner.triton_server.front.connections import Connections

MAX_CONNECTIONS = 100


class _Connection:
    """As with asyncio, ``abort`` returns before the connection is lost."""

    def __init__(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_many_that_come_at_once_each_take_the_place_of_another() -> None:
    connections: Connections[_Connection] = Connections(MAX_CONNECTIONS)
    first = [_Connection(is_idle=number >= 10) for number in range(MAX_CONNECTIONS)]
    further = [_Connection(is_idle=False) for _ in range(MAX_CONNECTIONS)]
    for each in [*first, *further]:
        connections.add(each)
    assert len(list(connections)) == MAX_CONNECTIONS
    assert [each.is_aborted for each in first] == [each.is_idle for each in first]
    assert [each.is_aborted for each in further].index(True) == MAX_CONNECTIONS - 10
